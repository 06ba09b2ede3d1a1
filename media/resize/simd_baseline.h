#pragma once
// Vectors of one pixel, in plain C++.
#include "media/resize/passes.h"

namespace troupe::media {
namespace {

struct SimdBaseline {
  static constexpr int kLanes = 4;
  struct Ints {
    std::int32_t lanes[kLanes];
  };

  static Ints zero() { return {}; }
  static Ints broadcast(std::int32_t value) { return {{value, value, value, value}}; }
  /// As many weights as a vector has pixels, each for all bytes of its pixel.
  static Ints spread(const std::int32_t* weights) { return broadcast(weights[0]); }
  /// kLanes bytes.
  static Ints widen(const std::uint8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
  static Ints add_product(Ints sum, const Ints& a, const Ints& b) {
    for (int i = 0; i < kLanes; ++i) sum.lanes[i] += a.lanes[i] * b.lanes[i];
    return sum;
  }
  /// From sums with kWeightBits bits of fraction to kLanes bytes: rounded, then clamped.
  static void store_bytes(std::uint8_t* to, const Ints& sum) {
    for (int i = 0; i < kLanes; ++i) {
      const std::int32_t rounded = (sum.lanes[i] + (1 << (kWeightBits - 1))) >> kWeightBits;
      to[i] = static_cast<std::uint8_t>(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
    }
  }
  /// For each row the sum of its vector's pixels, as one pixel at `offset`.
  static void store_pixels(const Ints* sums, std::uint8_t* const* rows, std::size_t offset) {
    for (int row = 0; row < kRowsAtOnce; ++row) store_bytes(rows[row] + offset, sums[row]);
  }
  /// kLanes pixels into three planes.
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    for (int i = 0; i < kLanes; ++i, pixels += kPixelLanes)
      for (int plane = 0; plane < 3; ++plane)
        planes[static_cast<std::size_t>(plane) * pitch + static_cast<std::size_t>(i)] = pixels[plane];
  }
};

}  // namespace
}  // namespace troupe::media
