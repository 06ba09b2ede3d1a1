#pragma once
// 8-bit keys and values on the GPU: codes to numbers. layout.h says where codes lie, quantize_kv.h how they
// are made.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/kv_format.h"

namespace troupe::kernels::cuda {

/// What a code stands for before its token's scale multiplies it. Any byte gives a finite number: e4m3's NaN
/// is 480.
__device__ __forceinline__ float kv_number(KvFormat format, std::uint8_t code) {
  if (format == KvFormat::int8) return static_cast<float>(static_cast<std::int8_t>(code));
  // In place of a float's exponent and mantissa; the exponent is then 127 - 7 too low.
  return __int_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

/// Bytes kLow and kHigh of four codes as a pair of bf16, exactly.
template <KvFormat kFormat, int kLow, int kHigh>
__device__ __forceinline__ std::uint32_t expand_two(std::uint32_t codes) {
  if constexpr (kFormat == KvFormat::int8) {
    return int8_pair(__byte_perm(codes, 0, 0x4040u | kHigh << 8 | kLow));
  } else {
    const std::uint32_t two = __byte_perm(codes, 0, 0x0404u | kHigh << 12 | kLow << 4);
    return multiply_pairs((two & 0x80008000u) | (two >> 4 & 0x07f007f0u), 0x7b807b80u);  // 2^120
  }
}

}  // namespace troupe::kernels::cuda
