#include "kernels/mlp.h"

#include "kernels/cpu/linear.h"
#include "kernels/linear_add.h"

namespace troupe::kernels {

// Panels of gate and up alternate, so 32 activations are computed from one pair of adjacent panels.
void run(Cpu& device, const Mlp& op) {
  if (op.norm.weight != nullptr) run(device, op.norm);
  const Routines& r = routines(device.isa());
  const DType dtype = op.down.activations();
  const auto swiglu = r.swiglu[static_cast<int>(dtype)];
  const auto ld = static_cast<std::size_t>(padded(op.down.inputs));
  linear<2>(device, op.gate_up, op.x, op.rows, [&](int first, int rows, int pair, const TileSums& sums) {
    for (int i = 0; i < rows; ++i) {
      const std::size_t at =
          static_cast<std::size_t>(first + i) * ld + static_cast<std::size_t>(pair) * kPanel;
      swiglu(static_cast<std::byte*>(op.activation) + at * size_of(dtype), sums(0, i), sums(1, i), kPanel);
    }
  });
  run(device, LinearAdd{.residual = op.residual, .x = op.activation, .weight = op.down, .rows = op.rows});
}

}  // namespace troupe::kernels
