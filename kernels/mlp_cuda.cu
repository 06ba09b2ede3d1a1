#include "kernels/mlp.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

cuda::Linear cuda::gate_up_of(const Mlp& op) {
  return {.weight = op.gate_up,
          .x = op.x,
          .rows = op.rows,
          .norm = op.norm,
          .ending = Ending::swiglu,
          .out = op.activation};
}

cuda::Linear cuda::down_of(const Mlp& op) {
  return {.weight = op.down, .x = op.activation, .rows = op.rows, .ending = Ending::add, .out = op.residual};
}

void run(Cuda& device, const Mlp& op) {
  cuda::run(device, cuda::gate_up_of(op));
  cuda::run(device, cuda::down_of(op));
}

}  // namespace troupe::kernels
