#include "kernels/mlp.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const Mlp& op) {
  cuda::run(device, cuda::gate_up_of(op));
  cuda::run(device, cuda::down_of(op));
}

}  // namespace troupe::kernels
