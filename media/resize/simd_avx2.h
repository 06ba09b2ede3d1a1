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
  static Ints spread(const std::int32_t* weights) {
    const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights));
    return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(two),
                                       _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
  }
  static Ints widen(const std::uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Ints add_product(Ints sum, Ints a, Ints b) {
    return _mm256_add_epi32(sum, _mm256_mullo_epi32(a, b));
  }
  static void store_bytes(std::uint8_t* to, Ints sum) {
    const Ints value = rounded(sum);
    const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(shorts, shorts));
  }
  static void store_pixels(const Ints* sums, std::uint8_t* const* rows, std::size_t offset) {
    const Ints shorts =
        _mm256_packs_epi32(rounded(sum_of_two(sums[0], sums[1])), rounded(sum_of_two(sums[2], sums[3])));
    const Ints bytes =
        _mm256_packus_epi16(shorts, shorts);  // low half: rows 0 and 2, high half: rows 1 and 3
    const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    _mm_storeu_si32(rows[0] + offset, even);
    _mm_storeu_si32(rows[1] + offset, odd);
    _mm_storeu_si32(rows[2] + offset, _mm_srli_si128(even, 4));
    _mm_storeu_si32(rows[3] + offset, _mm_srli_si128(odd, 4));
  }
  static void split(const std::uint8_t* pixels, std::uint8_t* planes, std::size_t pitch) {
    // Each half: 4 bytes of red, of green, of blue, of the fourth.
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i grouped = _mm256_permutevar8x32_epi32(
        _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pixels)), order),
        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i low = _mm256_castsi256_si128(grouped), high = _mm256_extracti128_si256(grouped, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes), low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes + pitch), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(planes + 2 * pitch), high);
  }

 private:
  static Ints rounded(Ints sum) {
    return _mm256_srai_epi32(_mm256_add_epi32(sum, broadcast(1 << (kWeightBits - 1))), kWeightBits);
  }
  /// Both halves of `a` added, beside both of `b`.
  static Ints sum_of_two(Ints a, Ints b) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
  }
};

}  // namespace
}  // namespace troupe::media
