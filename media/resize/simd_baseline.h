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
  static Ints load(const std::int32_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
  static Ints widen(const std::uint8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
  static Ints add_product(Ints sum, const Ints& a, const Ints& b) {
    for (int i = 0; i < kLanes; ++i) sum.lanes[i] += a.lanes[i] * b.lanes[i];
    return sum;
  }
  static void store_bytes(std::uint8_t* to, const Ints& sum) {
    for (int i = 0; i < kLanes; ++i) {
      const std::int32_t rounded = (sum.lanes[i] + (1 << (kWeightBits - 1))) >> kWeightBits;
      to[i] = static_cast<std::uint8_t>(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
    }
  }
  static void store_pixel(std::uint8_t* to, const Ints& sum) { store_bytes(to, sum); }
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    for (int i = 0; i < kLanes; ++i, pixels += kPixelLanes)
      for (int plane = 0; plane < 3; ++plane) planes[static_cast<std::size_t>(plane) * pitch + static_cast<std::size_t>(i)] = pixels[plane];
  }
};

}  // namespace
}  // namespace troupe::media
