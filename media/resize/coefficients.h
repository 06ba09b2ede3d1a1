#pragma once
// Weights of a bicubic resize along one axis, as integers: those of Pillow up to 12.3, to the bit.
#include <cstdint>
#include <vector>

namespace troupe::media {

inline constexpr int kWeightBits = 22;  ///< of the fraction

/// For each position of the output: which positions of the input it is a weighted sum of.
struct AxisWeights {
  struct Window {
    int first = 0;  ///< position of the input
    int count = 0;  ///< 1 or more
  };
  std::vector<Window> windows;  ///< one for each position of the output
  int stride = 0;               ///< weights that each window has room for; a multiple of 4
  /// windows.size() times `stride`; zeros behind a window's own.
  std::vector<std::int32_t> weights;

  const std::int32_t* of(int position) const {
    return weights.data() + static_cast<std::size_t>(position) * static_cast<std::size_t>(stride);
  }
};

/// `from` and `to` are sides in pixels, 1 or more.
AxisWeights bicubic_weights(int from, int to);

}  // namespace troupe::media
