#include "kernels/mlp.h"

#include "kernels/cuda/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const Mlp& op) {
  cuda::run(device, cuda::Linear{.weight = op.gate_up,
                                 .x = op.x,
                                 .rows = op.rows,
                                 .norm = op.norm,
                                 .ending = cuda::Ending::swiglu,
                                 .out = op.activation});
  cuda::run(device, cuda::Linear{.weight = op.down,
                                 .x = op.activation,
                                 .rows = op.rows,
                                 .ending = cuda::Ending::add,
                                 .out = op.residual});
}

}  // namespace troupe::kernels
