#pragma once
// AVX-512 with bf16 dot products: one instruction multiplies 32 pairs and adds them to 16 sums. It
// flushes subnormal inputs and results to zero.
#include <cstring>

#include "kernels/cpu/simd_avx512_vnni.h"

namespace troupe::kernels {

struct Avx512Bf16 : Avx512Vnni {
  static constexpr int kTileRows = 12;
  static constexpr int kNearRows = 5;
  static constexpr bool kBf16Dot = true;
  using W = __m512bh;

  /// Volatile: else the compiler loads the same weights again for every row.
  static W load_weights(const std::uint16_t* p) {
    const __m512i pairs = *reinterpret_cast<const volatile __m512i_u*>(p);
    return reinterpret_cast<W>(pairs);
  }
  /// The pair at p in every lane.
  static W broadcast_pair(const std::uint16_t* p) {
    int pair;
    std::memcpy(&pair, p, sizeof pair);
    return reinterpret_cast<W>(_mm512_set1_epi32(pair));
  }
  static F dot(F sum, W a, W b) { return _mm512_dpbf16_ps(sum, a, b); }
  static void store_bf16(std::uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
  }
};

}  // namespace troupe::kernels
