#pragma once
// The loops of a resize, once for each instruction set. All of them give the same bits: sums are of 32-bit
// integers, which no order changes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "media/resize/coefficients.h"

namespace troupe::media {

inline constexpr int kRowsAtOnce = 4;  ///< of the horizontal pass
inline constexpr int kPixelLanes = 4;  ///< bytes of a pixel, each of which has a sum
inline constexpr int kPitchUnit = 64;  ///< rows of planes are padded to multiples of so many bytes

struct Passes {
  const char* name;

  /// Resizes kRowsAtOnce rows of pixels (picture.h) to `to` pixels each. Reads up to 12 bytes behind the last
  /// pixel of a source row.
  void (*horizontal)(const std::uint8_t* const* sources, const AxisWeights::Window* windows,
                     const std::int32_t* weights, int stride, int to, std::uint8_t* const* outputs);

  /// Takes a row of pixels apart into three planes of `pitch` bytes each, one behind the other. Reads and
  /// writes whole multiples of 16 pixels.
  void (*split)(const std::uint8_t* pixels, int width, std::uint8_t* planes, std::size_t pitch);

  /// The weighted sum of `count` rows of `bytes` bytes each, a multiple of kPitchUnit.
  void (*vertical)(const std::uint8_t* const* rows, const std::int32_t* weights, int count, std::size_t bytes,
                   std::uint8_t* output);
};

extern const Passes kPassesBaseline;
extern const Passes kPassesAvx2;    ///< in builds for x86-64
extern const Passes kPassesAvx512;  ///< in builds for x86-64

/// Those that this processor runs, the fastest last.
std::span<const Passes* const> usable_passes();

inline const Passes& passes() { return *usable_passes().back(); }

}  // namespace troupe::media
