#include "kernels/rope_table.h"

#include <cmath>
#include <cstddef>

#include "gpu/cpu.h"

namespace troupe::kernels {

void rope_inverse_frequencies(float* out, int head_dim, double theta) {
  for (int i = 0; i < head_dim / 2; ++i) out[i] = static_cast<float>(std::pow(theta, -2.0 * i / head_dim));
}

void run(Cpu& device, const RopeTable& op) {
  const int half = op.head_dim / 2;
  device.pool().for_each(op.rows, 8, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const std::int32_t* positions =
          op.positions + static_cast<std::size_t>(r) * static_cast<std::size_t>(op.axes);
      float* out = op.out + static_cast<std::size_t>(r) * static_cast<std::size_t>(op.head_dim);
      for (int i = 0; i < half; ++i) {
        const auto position = static_cast<float>(positions[op.axis != nullptr ? op.axis[i] : 0]);
        const float angle = position * op.inverse_frequencies[i];
        out[2 * i] = std::cos(angle);
        out[2 * i + 1] = std::sin(angle);
      }
    }
  });
}

}  // namespace troupe::kernels
