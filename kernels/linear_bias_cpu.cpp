#include "kernels/linear_bias.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/linear.h"

namespace troupe::kernels {
namespace {

float gelu(float y) { return 0.5f * y * (1 + std::erf(y * 0.70710678f)); }

}  // namespace

void run(Cpu& device, const LinearBias& op) {
  TROUPE_CHECK(!op.weight.format.quantised());
  const Routines& r = routines(device.isa());
  const DType dtype = op.weight.activations();
  const auto ld = static_cast<std::size_t>(padded(op.weight.outputs));
  linear<1>(device, op.weight, op.x, op.rows, [&](int first, int rows, int panel, const TileSums& sums) {
    const auto column = static_cast<std::size_t>(panel) * kPanel;
    alignas(64) float bias[kPanel] = {}, y[kPanel], scaled[kPanel];
    if (op.bias != nullptr) std::memcpy(bias, op.bias + column, sizeof bias);
    for (int i = 0; i < rows; ++i) {
      const std::size_t at = static_cast<std::size_t>(first + i) * ld + column;
      for (int o = 0; o < kPanel; ++o) y[o] = sums(0, i)[o] + bias[o];
      if (op.ending == BiasEnding::set) {
        std::memcpy(op.sum + at, y, sizeof y);
        continue;
      }
      if (op.ending == BiasEnding::add) {
        r.add(op.sum + at, y, kPanel);
        continue;
      }
      void* const out = static_cast<std::byte*>(op.out) + at * size_of(dtype);
      if (op.ending == BiasEnding::quick_gelu) {  // silu(1.702 y) / 1.702
        for (int o = 0; o < kPanel; ++o) {
          scaled[o] = 1.702f * y[o];
          y[o] = 1 / 1.702f;
        }
        r.swiglu[static_cast<int>(dtype)](out, scaled, y, kPanel);
        continue;
      }
      if (op.ending == BiasEnding::gelu) {
        for (float& v : y) v = gelu(v);
      }
      r.narrow[static_cast<int>(dtype)](out, y, kPanel);
    }
  });
}

}  // namespace troupe::kernels
