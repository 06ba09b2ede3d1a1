#pragma once
// The loops over a Simd: a class with the vectors of one instruction set. Included by routines_X.cpp alone,
// each compiled for its own set. Everything has internal linkage and nothing of the standard library is
// called: a function left out of line could be taken by the linker for other units' copy of it.
#include "media/resize/passes.h"

namespace troupe::media {
namespace {

template <class Simd>
void horizontal(const std::uint8_t* const* sources, const AxisWeights::Window* windows,
                const std::int32_t* weights, int stride, int to, std::uint8_t* const* outputs) {
  constexpr int kTaps = Simd::kLanes / kPixelLanes;  // pixels in a vector
  for (int x = 0; x < to; ++x, weights += stride) {
    const std::size_t offset = static_cast<std::size_t>(windows[x].first) * kPixelLanes;
    typename Simd::Ints sums[kRowsAtOnce];
    for (auto& sum : sums) sum = Simd::zero();
    for (int tap = 0; tap < windows[x].count; tap += kTaps) {
      const auto weight = Simd::spread(weights + tap);
      const std::size_t at = offset + static_cast<std::size_t>(tap) * kPixelLanes;
      for (int row = 0; row < kRowsAtOnce; ++row)
        sums[row] = Simd::add_product(sums[row], Simd::widen(sources[row] + at), weight);
    }
    Simd::store_pixels(sums, outputs, static_cast<std::size_t>(x) * kPixelLanes);
  }
}

template <class Simd>
void split(const std::uint8_t* pixels, int width, std::uint8_t* planes, std::size_t pitch) {
  for (int x = 0; x < width; x += Simd::kLanes)
    Simd::split(pixels + static_cast<std::size_t>(x) * kPixelLanes, planes + x, pitch);
}

template <class Simd>
void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int count, std::size_t bytes,
              std::uint8_t* output) {
  constexpr int kVectors = 4;
  for (std::size_t x = 0; x < bytes; x += kVectors * Simd::kLanes) {
    typename Simd::Ints sums[kVectors];
    for (auto& sum : sums) sum = Simd::zero();
    for (int i = 0; i < count; ++i) {
      const auto weight = Simd::broadcast(weights[i]);
      const std::uint8_t* row = rows[i] + x;
      for (int v = 0; v < kVectors; ++v)
        sums[v] = Simd::add_product(sums[v], Simd::widen(row + v * Simd::kLanes), weight);
    }
    for (int v = 0; v < kVectors; ++v) Simd::store_bytes(output + x + v * Simd::kLanes, sums[v]);
  }
}

template <class Simd>
constexpr Passes passes_of(const char* name) {
  return {name, horizontal<Simd>, split<Simd>, vertical<Simd>};
}

}  // namespace
}  // namespace troupe::media
