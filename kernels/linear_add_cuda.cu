#include "kernels/linear_add.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const LinearAdd& op) { cuda::run(device, cuda::linear_of(op)); }

}  // namespace troupe::kernels
