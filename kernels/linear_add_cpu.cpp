#include "kernels/cpu/linear.h"
#include "kernels/linear_add.h"

namespace troupe::kernels {

void run(Cpu& device, const LinearAdd& op) {
  const Routines& r = routines(device.isa());
  const auto ld = static_cast<std::size_t>(padded(op.weight.outputs));
  linear<1>(device, op.weight, op.x, op.rows, [&](int first, int rows, int panel, const TileSums& sums) {
    for (int i = 0; i < rows; ++i) {
      r.add(op.residual + static_cast<std::size_t>(first + i) * ld + static_cast<std::size_t>(panel) * kPanel,
            sums(0, i), kPanel);
    }
  });
}

}  // namespace troupe::kernels
