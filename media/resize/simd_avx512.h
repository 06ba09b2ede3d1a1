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
  static Ints load(const std::int32_t* from) { return _mm512_loadu_si512(from); }
  static Ints widen(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints add_product(Ints sum, Ints a, Ints b) { return _mm512_add_epi32(sum, _mm512_mullo_epi32(a, b)); }
  static void store_bytes(std::uint8_t* to, Ints sum) {
    const Ints rounded = _mm512_srai_epi32(_mm512_add_epi32(sum, broadcast(1 << (kWeightBits - 1))), kWeightBits);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtusepi32_epi8(_mm512_max_epi32(rounded, _mm512_setzero_si512())));
  }
  static void store_pixel(std::uint8_t* to, Ints sum) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i rounded = _mm_srai_epi32(_mm_add_epi32(four, _mm_set1_epi32(1 << (kWeightBits - 1))), kWeightBits);
    const __m128i shorts = _mm_packs_epi32(rounded, rounded);
    _mm_storeu_si32(to, _mm_packus_epi16(shorts, shorts));
  }
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    const Ints pixel = _mm512_loadu_si512(pixels);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes), _mm512_cvtepi32_epi8(pixel));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + pitch), _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixel, 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(planes + 2 * pitch), _mm512_cvtepi32_epi8(_mm512_srli_epi32(pixel, 16)));
  }
};

}  // namespace
}  // namespace troupe::media
