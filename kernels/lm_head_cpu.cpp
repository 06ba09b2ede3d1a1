#include "kernels/lm_head.h"

#include <cstring>

#include "kernels/cpu/linear.h"

namespace troupe::kernels {

void run(Cpu& device, const LmHead& op) {
  const auto ld = static_cast<std::size_t>(padded(op.weight.outputs));
  linear<1>(device, op.weight, op.x, op.rows, [&](int first, int rows, int panel, const TileSums& sums) {
    for (int i = 0; i < rows; ++i) {
      std::memcpy(
          op.logits + static_cast<std::size_t>(first + i) * ld + static_cast<std::size_t>(panel) * kPanel,
          sums(0, i), kPanel * sizeof(float));
    }
  });
}

}  // namespace troupe::kernels
