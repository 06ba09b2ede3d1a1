#include "kernels/linear_add.h"

#include "kernels/cuda/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const LinearAdd& op) {
  cuda::run(
      device,
      cuda::Linear{
          .weight = op.weight, .x = op.x, .rows = op.rows, .ending = cuda::Ending::add, .out = op.residual});
}

}  // namespace troupe::kernels
