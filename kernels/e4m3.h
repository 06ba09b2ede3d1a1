#pragma once
// The 8-bit float e4m3 on the host: 1 sign, 4 exponent (bias 7) and 3 mantissa bits. No infinity; ±448 is the
// largest number, 0x7f and 0xff are NaN.
#include <bit>
#include <cmath>
#include <cstdint>

namespace troupe::kernels {

inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu, sign = std::uint32_t{code & 0x80u} << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude < 8) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(magnitude) * 0x1p-9f));
  return std::bit_cast<float>(sign | ((magnitude << 20) + (std::uint32_t{127 - 7} << 23)));
}

/// Nearest, ties to even; what is larger than 448 becomes 448. NaN becomes 0x7f.
inline std::uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;  // 448
  if (magnitude < 0x3c800000u) {                     // below 2^-6, the smallest normal: 2^14 aligns the bits
    const float aligned = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(aligned) - 0x46800000u);
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return sign | static_cast<std::uint8_t>((rounded - (std::uint32_t{127 - 7} << 23)) >> 20);
}

}  // namespace troupe::kernels
