#include "kernels/lm_head.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const LmHead& op) { cuda::run(device, cuda::linear_of(op)); }

}  // namespace troupe::kernels
