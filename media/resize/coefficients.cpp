// Compiled without contraction of floating-point operations (media/CMakeLists.txt): each is rounded by
// itself, in the order of the reference.
#include "media/resize/coefficients.h"

#include <algorithm>
#include <cmath>

namespace troupe::media {
namespace {

constexpr double kA = -0.5;
constexpr double kSupport = 2.0;

double bicubic(double x) {
  x = std::fabs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

/// Halves go away from zero.
std::int32_t fixed_point(double weight) {
  const double scaled = weight * (1 << kWeightBits);
  return static_cast<std::int32_t>(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

}  // namespace

AxisWeights bicubic_weights(int from, int to) {
  const double scale = static_cast<double>(from) / to;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kSupport * filter_scale;
  const double inverse = 1.0 / filter_scale;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  AxisWeights out;
  out.stride = (most + 3) / 4 * 4;
  out.windows.resize(static_cast<std::size_t>(to));
  out.weights.resize(static_cast<std::size_t>(to) * static_cast<std::size_t>(out.stride));
  std::vector<double> exact(static_cast<std::size_t>(most));
  for (int position = 0; position < to; ++position) {
    const double center = (position + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int count = std::min(static_cast<int>(center + support + 0.5), from) - first;
    double sum = 0.0;
    for (int i = 0; i < count; ++i) {
      exact[static_cast<std::size_t>(i)] = bicubic((i + first - center + 0.5) * inverse);
      sum += exact[static_cast<std::size_t>(i)];
    }
    std::int32_t* weights =
        out.weights.data() + static_cast<std::size_t>(position) * static_cast<std::size_t>(out.stride);
    for (int i = 0; i < count; ++i) {
      const double weight = exact[static_cast<std::size_t>(i)];
      weights[i] = fixed_point(sum != 0.0 ? weight / sum : weight);
    }
    out.windows[static_cast<std::size_t>(position)] = {first, count};
  }
  return out;
}

}  // namespace troupe::media
