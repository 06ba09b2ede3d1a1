#pragma once
// Vectors of two pixels.
#include <immintrin.h>

#include "media/resize/passes.h"

namespace troupe::media {
namespace {

struct SimdAvx2 {
  static constexpr int kLanes = 8;
  using Ints = __m256i;

  static Ints zero() { return _mm256_setzero_si256(); }
  static Ints broadcast(std::int32_t value) { return _mm256_set1_epi32(value); }
  static Ints load(const std::int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Ints widen(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints add_product(Ints sum, Ints a, Ints b) { return _mm256_add_epi32(sum, _mm256_mullo_epi32(a, b)); }
  static void store_bytes(std::uint8_t* to, Ints sum) {
    const Ints rounded = _mm256_srai_epi32(_mm256_add_epi32(sum, broadcast(1 << (kWeightBits - 1))), kWeightBits);
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(shorts, shorts));
  }
  static void store_pixel(std::uint8_t* to, Ints sum) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i rounded = _mm_srai_epi32(_mm_add_epi32(four, _mm_set1_epi32(1 << (kWeightBits - 1))), kWeightBits);
    const __m128i shorts = _mm_packs_epi32(rounded, rounded);
    _mm_storeu_si32(to, _mm_packus_epi16(shorts, shorts));
  }
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    // Each half: 4 bytes of red, of green, of blue, of the fourth.
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i grouped = _mm256_permutevar8x32_epi32(
        _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pixels)), order),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i low = _mm256_castsi256_si128(grouped), high = _mm256_extracti128_si256(grouped, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes), low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes + pitch), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes + 2 * pitch), high);
  }
};

}  // namespace
}  // namespace troupe::media
