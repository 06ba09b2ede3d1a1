#include "kernels/lm_head.h"

#include "kernels/cuda/product/linear.h"

namespace troupe::kernels {

void run(Cuda& device, const LmHead& op) {
  cuda::run(device, cuda::Linear{.weight = op.weight,
                                 .x = op.x,
                                 .rows = op.rows,
                                 .ending = cuda::Ending::store_f32,
                                 .out = op.logits});
}

}  // namespace troupe::kernels
