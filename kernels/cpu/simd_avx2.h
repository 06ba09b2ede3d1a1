#pragma once
// Vectors of AVX2 with FMA and F16C: eight floats, sixteen registers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/dots.h"

namespace troupe::kernels {

struct Avx2 {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 3;
  static constexpr int kNearRows = 1;
  static constexpr bool kBf16Dot = false;

  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F nearest(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale_by_power(F a, F n) {
    const __m256i bits =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
  }
  static F zero_where_below(F x, F limit, F value) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), value);
  }
  static bool all_finite(F x) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const __m256i bad = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), exponent), exponent);
    return _mm256_testz_si256(bad, bad) != 0;
  }
  static bool any_above(F x, F limit) { return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)) != 0; }
  static float first(F v) { return _mm256_cvtss_f32(v); }
  static float sum_lanes(F v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float max_lanes(F v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }
  static void store_int(std::uint32_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvttps_epi32(v));
  }

  static void load_bf16_pairs(const std::uint16_t* p, F& even, F& odd) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F load_bf16(const std::uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_bf16(std::uint16_t* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m256i kept = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
    const __m256i high = _mm256_srli_epi32(kept, 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  static void store_f16(std::uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // Bytes: what dots.h is made of.
  using Bytes = __m256i;
  static constexpr int kDotRows = 3;
  static constexpr int kNearDotRows = 0;
  static constexpr int kDotVectors = 1;  // vectors of sums that a row of x has in registers at a time
  template <WeightKind K>
  using Dots = PairDots<Avx2, K>;

  static Bytes load_bytes(const std::uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  /// The four bytes at p in every lane.
  static Bytes broadcast_bytes(const std::int8_t* p) {
    int four;
    std::memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static Bytes set1_int(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Bytes low_halves(Bytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
  static Bytes high_halves(Bytes a) { return low_halves(_mm256_srli_epi16(a, 4)); }
  static Bytes multiply_pairs(Bytes codes, Bytes operand) { return _mm256_maddubs_epi16(codes, operand); }
  static Bytes add_16(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
  static Bytes add_32(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
  static Bytes sum_pairs(Bytes a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
  static Bytes times_16(Bytes a) { return _mm256_slli_epi32(a, 4); }
  static F to_float(Bytes a) { return _mm256_cvtepi32_ps(a); }
  static F fused(F a, F b, F c) { return fma(a, b, c); }
  static F truncated(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
  /// Where `x` is less, it takes the place of `least`, and its tag that of `tag`.
  static void keep_less(F& least, F& tag, F x, F its_tag) {
    const F less = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
    least = _mm256_blendv_ps(least, x, less);
    tag = _mm256_blendv_ps(tag, its_tag, less);
  }
  static F load_as_floats(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// The upper or the lower half of each byte.
  static F load_halves(const std::uint8_t* p, bool upper) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtepi32_ps(upper ? _mm256_srli_epi32(bytes, 4)
                                    : _mm256_and_si256(bytes, _mm256_set1_epi32(15)));
  }
  /// As Avx512's; products take the place of shifts by different numbers of bits.
  static Bytes windows(F words) {
    const Bytes both = _mm256_shuffle_epi8(_mm256_cvttps_epi32(words),
                                           _mm256_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c,
                                                             0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c));
    const Bytes even = _mm256_mulhi_epu16(both, _mm256_set1_epi32(0x20000080));
    const Bytes odd = _mm256_mullo_epi16(both, _mm256_set1_epi32(0x01000004));
    return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi32(0x003f003f)),
                           _mm256_and_si256(odd, _mm256_set1_epi32(0x3f003f00)));
  }
  static void store_bytes(std::uint8_t* p, Bytes a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
  /// Integers of -128 … 127, as many as lanes.
  static void store_codes(std::int8_t* p, F v) {
    const __m256i words = _mm256_cvtps_epi32(v);
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
  }
};

}  // namespace troupe::kernels
