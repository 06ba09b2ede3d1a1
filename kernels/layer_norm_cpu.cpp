#include "kernels/layer_norm.h"

#include <cmath>

#include "gpu/cpu.h"

namespace troupe::kernels {

// Sums in double, in rising order: a row has few numbers beside the products around it.
void run(Cpu& device, const LayerNorm& op) {
  constexpr int kRowsPerClaim = 8;
  const auto ld = static_cast<std::size_t>(padded(op.cols));
  device.pool().for_each(op.rows, kRowsPerClaim, [&](int begin, int end, int) {
    for (int r = begin; r < end; ++r) {
      const std::size_t at = static_cast<std::size_t>(r) * ld;
      const float* x = op.x + at;
      double sum = 0, squares = 0;
      for (int i = 0; i < op.cols; ++i) sum += static_cast<double>(x[i]);
      const double mean = sum / op.cols;
      for (int i = 0; i < op.cols; ++i) {
        const double off = static_cast<double>(x[i]) - mean;
        squares += off * off;
      }
      const auto centre = static_cast<float>(mean);
      const auto inverse = static_cast<float>(1 / std::sqrt(squares / op.cols + static_cast<double>(op.eps)));
      for (std::size_t i = 0; i < ld; ++i) {
        const bool padding = i >= static_cast<std::size_t>(op.cols);
        const float value = padding ? 0.0f : (x[i] - centre) * inverse * op.weight[i] + op.bias[i];
        store_element(op.out, op.dtype, at + i, value);
      }
    }
  });
}

}  // namespace troupe::kernels
