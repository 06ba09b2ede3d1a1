#include "kernels/linear_add.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

cuda::Linear cuda::linear_of(const LinearAdd& op) {
  return {.weight = op.weight, .x = op.x, .rows = op.rows, .ending = Ending::add, .out = op.residual};
}

void run(Cuda& device, const LinearAdd& op) { cuda::run(device, cuda::linear_of(op)); }

}  // namespace troupe::kernels
