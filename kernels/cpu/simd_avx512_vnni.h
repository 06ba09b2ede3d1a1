#pragma once
// AVX-512 with dot products of bytes: one instruction adds 64 products to 16 sums.
#include "kernels/cpu/simd_avx512.h"

namespace troupe::kernels {

struct Avx512Vnni : Avx512 {
  static constexpr int kDotVectors = 2;
  static constexpr int kNearDotRows = 4;
  template <WeightKind K>
  using Dots = ByteDots<Avx512Vnni, K>;

  static Bytes dot_bytes(Bytes sum, Bytes codes, Bytes operand) {
    return _mm512_dpbusd_epi32(sum, codes, operand);
  }
};

}  // namespace troupe::kernels
