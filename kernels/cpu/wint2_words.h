#pragma once
// Bytes of wint2 to code words and their windows, on vectors; see kernels/wint2.h.
#include <cstdint>
#include <limits>

#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"
#include "kernels/wint2.h"

namespace troupe::kernels {

/// The lines of as many outputs as V has lanes.
template <class V>
struct Wint2Line {
  using F = typename V::F;
  F scale = V::set1(0), zp = V::set1(0);

  Wint2Line() = default;
  /// `lines` as in TileArgs.
  explicit Wint2Line(const float* lines) : scale(V::load(lines)), zp(V::load(lines + kPanel)) {}

  F word_and_fraction(F byte) const { return V::add(V::fused(byte, scale, zp), V::set1(0.5f)); }
  /// Four windows of each output's byte.
  auto windows(const std::uint8_t* bytes) const {
    return V::windows(word_and_fraction(V::load_as_floats(bytes)));
  }
};

template <class V>
void wint2_windows(std::uint8_t* to, const std::uint8_t* panel, const float* lines, int inputs) {
  for (int v = 0; v < kPanel; v += V::kLanes) {
    const Wint2Line<V> line(lines + v);
    for (int i = 0; i < inputs / kWint2Inputs; ++i) {
      V::store_bytes(to + 4 * (i * kPanel + v), line.windows(panel + i * kPanel + v));
    }
  }
}

template <class V>
void wint2_nearest(std::uint8_t* bytes, const float (*quads)[16], const Wint2Book& book) {
  using F = typename V::F;
  for (int first = 0; first < 16; first += V::kLanes) {
    F number[4];
    for (int j = 0; j < 4; ++j) number[j] = V::sub(V::set1(0), V::load(quads[j] + first));
    F least = V::set1(std::numeric_limits<float>::max()), nearest = V::set1(0);
    for (int byte = 0; byte < 256; ++byte) {
      // Half of the squared distance, less the same for all bytes.
      F distance = V::set1(book.half_square[byte]);
      for (int j = 0; j < 4; ++j) distance = V::fma(number[j], V::set1(book.codes[j][byte]), distance);
      V::keep_less(least, nearest, distance, V::set1(static_cast<float>(byte)));
    }
    alignas(64) float found[V::kLanes];
    V::store(found, nearest);
    for (int i = 0; i < V::kLanes; ++i) bytes[first + i] = static_cast<std::uint8_t>(found[i]);
  }
}

template <class V>
Wint2Lines wint2_lines(const float* code_scales, const float* code_zps, int count) {
  using F = typename V::F;
  Wint2Lines found;
  for (int first = 0; first < count; first += V::kLanes) {
    alignas(64) float scales[V::kLanes] = {}, zps[V::kLanes] = {};
    const int outputs = count - first < V::kLanes ? count - first : V::kLanes;
    for (int i = 0; i < outputs; ++i) {
      scales[i] = code_scales[first + i];
      zps[i] = code_zps[first + i];
      // Words rise or fall with the byte. A NaN is out of range as well.
      for (const std::uint8_t byte : {0, 255}) {
        const float word = wint2_word(byte, scales[i], zps[i]);
        if (!(word >= 0 && word <= kWint2LargestWord) && found.out_of_range < 0)
          found.out_of_range = first + i;
      }
    }
    if (found.out_of_range >= 0) return found;
    const F scale = V::load(scales), zp = V::load(zps), half = V::set1(0.5f);
    F differing = V::set1(0);
    for (int byte = 0; byte < 256; ++byte) {
      const F number = V::set1(static_cast<float>(byte));
      const F fused = V::truncated(V::add(V::fused(number, scale, zp), half));
      const F rounded = V::truncated(V::add(V::add(V::mul(number, scale), zp), half));
      const F distance = V::sub(fused, rounded);
      differing = V::max(differing, V::mul(distance, distance));
    }
    alignas(64) float differs[V::kLanes];
    V::store(differs, differing);
    for (const float d : differs) found.differing += d > 0;
  }
  return found;
}

}  // namespace troupe::kernels
