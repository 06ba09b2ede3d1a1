#pragma once
// How keys and values become codes and scales. Both devices follow these rules to the bit.
//
// K (after the rotary embedding) and V are rounded to the activations' dtype first, as a plain cache stores
// them. Then, for K and for V of each token and KV head by itself, over its head_dim numbers:
//
//   scale = largest magnitude / largest code (127 or 448), in fp32
//   code  = number / scale in fp32, rounded to the nearest, ties to even, and clamped to the largest code
//
// A scale of 0 has codes of 0. A number that is not finite makes its scale a NaN, whose codes are 0: attention
// to that token gives NaN, as it does with a plain cache.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/e4m3.h"
#include "kernels/kv_format.h"
#include "kernels/quantize.h"

namespace troupe::kernels {

constexpr float largest_code(KvFormat format) {
  return format == KvFormat::fp8 ? kLargestFp8 : kLargestInt8;
}

/// `largest`: of the token's magnitudes, by larger_magnitude().
inline float kv_scale(KvFormat format, float largest) { return largest / largest_code(format); }

inline std::uint8_t kv_code(KvFormat format, float number, float scale) {
  if (!(scale > 0)) return 0;
  const float quotient = number / scale;
  if (format == KvFormat::fp8) return float_to_e4m3(quotient);
  constexpr float kInteger = 12582912.0f;  // 1.5 * 2^23: its last bit is worth 1, so a sum with it is rounded to one
  const float nearest = std::clamp(quotient, -kLargestInt8, kLargestInt8) + kInteger - kInteger;
  return static_cast<std::uint8_t>(static_cast<int>(nearest));
}

/// What a code stands for before its token's scale multiplies it.
inline float kv_number(KvFormat format, std::uint8_t code) {
  return format == KvFormat::fp8 ? e4m3_to_float(code) : float(static_cast<std::int8_t>(code));
}

}  // namespace troupe::kernels
