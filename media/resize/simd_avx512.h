#pragma once
// Vectors of four pixels.
#include <immintrin.h>

#include "media/resize/passes.h"

namespace troupe::media {
namespace {

struct SimdAvx512 {
  static constexpr int kLanes = 16;
  using Ints = __m512i;

  static Ints zero() { return _mm512_setzero_si512(); }
  static Ints broadcast(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Ints spread(const std::int32_t* weights) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                    _mm512_castsi128_si512(four));
  }
  static Ints widen(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints add_product(Ints sum, Ints a, Ints b) {
    return _mm512_add_epi32(sum, _mm512_mullo_epi32(a, b));
  }
  static void store_bytes(std::uint8_t* to, Ints sum) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded(sum));
  }
  static void store_pixels(const Ints* sums, std::uint8_t* const* rows, std::size_t offset) {
    const __m128i pixels = rounded(pair_sums(pair_sums(sums[0], sums[1]), pair_sums(sums[2], sums[3])));
    _mm_storeu_si32(rows[0] + offset, pixels);
    _mm_storeu_si32(rows[1] + offset, _mm_srli_si128(pixels, 4));
    _mm_storeu_si32(rows[2] + offset, _mm_srli_si128(pixels, 8));
    _mm_storeu_si32(rows[3] + offset, _mm_srli_si128(pixels, 12));
  }
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    const Ints pixel = _mm512_loadu_si512(pixels);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes), _mm512_cvtepi32_epi8(pixel));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + pitch),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixel, 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 2 * pitch),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixel, 16)));
  }

 private:
  static __m128i rounded(Ints sum) {
    const Ints value =
        _mm512_srai_epi32(_mm512_add_epi32(sum, broadcast(1 << (kWeightBits - 1))), kWeightBits);
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(value, _mm512_setzero_si512()));
  }
  /// The sums of neighbouring quarters of `a`, then of `b`.
  static Ints pair_sums(Ints a, Ints b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
  }
};

}  // namespace
}  // namespace troupe::media
