#pragma once
// Vectors of AVX-512 (F, BW, VL, DQ): sixteen floats, thirty-two registers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/dots.h"

namespace troupe::kernels {

struct Avx512 {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 12;
  static constexpr int kNearRows = 1;
  static constexpr bool kBf16Dot = false;

  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F nearest(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale_by_power(F a, F n) { return _mm512_scalef_ps(a, n); }
  static F zero_where_below(F x, F limit, F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  }
  static bool all_finite(F x) { return _mm512_fpclass_ps_mask(x, 0x99) == 0; }  // NaNs and infinities
  static bool any_above(F x, F limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ) != 0; }
  static float first(F v) { return _mm512_cvtss_f32(v); }
  static float sum_lanes(F v) { return _mm512_reduce_add_ps(v); }
  static float max_lanes(F v) { return _mm512_reduce_max_ps(v); }
  static void store_int(std::uint32_t* p, F v) { _mm512_storeu_si512(p, _mm512_cvttps_epi32(v)); }
  /// Those of sixteen words that lie in [low, high), side by side; returns how many. Writes sixteen words.
  static int compress_range(std::uint32_t* to, const std::uint32_t* from, std::uint32_t low,
                            std::uint32_t high) {
    const __m512i words = _mm512_loadu_si512(from);
    const __mmask16 in = _mm512_cmpge_epu32_mask(words, _mm512_set1_epi32(static_cast<int>(low))) &
                         _mm512_cmplt_epu32_mask(words, _mm512_set1_epi32(static_cast<int>(high)));
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(in, words));
    return __builtin_popcount(in);
  }

  static void load_bf16_pairs(const std::uint16_t* p, F& even, F& odd) {
    const __m512i bits = _mm512_loadu_si512(p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F load_bf16(const std::uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_bf16(std::uint16_t* p, F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i kept = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
  }
  static void store_f16(std::uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // Bytes: what dots.h is made of.
  using Bytes = __m512i;
  static constexpr int kDotRows = 8;
  static constexpr int kNearDotRows = 0;
  static constexpr int kDotVectors = 1;  // vectors of sums that a row of x has in registers at a time
  template <WeightKind K>
  using Dots = PairDots<Avx512, K>;

  static Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  /// The four bytes at p in every lane.
  static Bytes broadcast_bytes(const std::int8_t* p) {
    int four;
    std::memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Bytes set1_int(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Bytes low_halves(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static Bytes high_halves(Bytes a) { return low_halves(_mm512_srli_epi16(a, 4)); }
  static Bytes multiply_pairs(Bytes codes, Bytes operand) { return _mm512_maddubs_epi16(codes, operand); }
  static Bytes add_16(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
  static Bytes add_32(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
  static Bytes sum_pairs(Bytes a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
  static Bytes times_16(Bytes a) { return _mm512_slli_epi32(a, 4); }
  static F to_float(Bytes a) { return _mm512_cvtepi32_ps(a); }
  static F fused(F a, F b, F c) { return fma(a, b, c); }
  static F truncated(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
  /// Where `x` is less, it takes the place of `least`, and its tag that of `tag`.
  static void keep_less(F& least, F& tag, F x, F its_tag) {
    const __mmask16 less = _mm512_cmp_ps_mask(x, least, _CMP_LT_OQ);
    least = _mm512_mask_mov_ps(least, less, x);
    tag = _mm512_mask_mov_ps(tag, less, its_tag);
  }
  static F load_as_floats(const std::uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// The upper or the lower half of each byte.
  static F load_halves(const std::uint8_t* p, bool upper) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtepi32_ps(upper ? _mm512_srli_epi32(bytes, 4)
                                    : _mm512_and_si512(bytes, _mm512_set1_epi32(15)));
  }
  /// Of each number's integer, 0 … 32,767, bits 9 … 14, 6 … 11, 3 … 8 and 0 … 5, a byte each. A word is
  /// copied to both halves of its lane; then one shift to the right brings the even bytes, one to the left
  /// the odd ones.
  static Bytes windows(F words) {
    const Bytes both = _mm512_shuffle_epi8(_mm512_cvttps_epi32(words),
                                           _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100));
    const Bytes even = _mm512_srlv_epi16(both, _mm512_set1_epi32(0x00030009));
    const Bytes odd = _mm512_sllv_epi16(both, _mm512_set1_epi32(0x00080002));
    const Bytes joined = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x00ff00ff), even, odd, 0xca);
    return _mm512_and_si512(joined, _mm512_set1_epi8(63));
  }
  static void store_bytes(std::uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a); }
  /// Integers of -128 … 127, as many as lanes.
  static void store_codes(std::int8_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
};

}  // namespace troupe::kernels
