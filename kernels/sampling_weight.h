#pragma once
// The definition of a logit's sampling weight, exact to the bit.
//
//   w = nearest multiple of 2^-30 to e^((z - max) / temperature) = 2^t,   t = (z - max) * scale
//
// A token drawn with a seed has to be the same on every instruction set and device, so the arithmetic is
// part of the definition: single precision, each operation rounded to nearest on its own, never fused.
//
//   t  = max(((z - max) * scale), kLowestPower)
//   n  = t rounded to the nearest whole number, even at a tie;   f = t - n
//   p  = ((((((c6 f + c5) f + c4) f + c3) f + c2) f + c1) f + 1
//   w  = whole part of (p * 2^(n + 30) + 0.5)
//
// p is within 1e-8 of 2^f before rounding (Chebyshev interpolation of (2^f - 1) / f on |f| <= 1/2), w within
// about two units in the last place of a float, and the largest logit weighs exactly 2^30.
#include <algorithm>
#include <cstdint>
#include <limits>

namespace troupe::kernels {

/// The largest weight, that of the largest logit: 1 in units of 2^-30.
inline constexpr std::uint32_t kFullWeight = 1u << 30;
inline constexpr int kWeightBits = 30;

/// c1 … c6.
inline constexpr float kPowerOfTwo[] = {0x1.62e43p-1f,  0x1.ebfbep-3f,  0x1.c6af6cp-5f,
                                        0x1.3b2a54p-7f, 0x1.5f089p-10f, 0x1.44138ap-13f};

/// The lowest power t: it and all lower powers have weight 0.
inline constexpr float kLowestPower = -40;

/// log2(e) / temperature, finite even for the smallest temperature > 0. Division and minimum are correctly
/// rounded, so devices may compute it themselves.
inline constexpr float kLog2E = 0x1.715476p+0f;
inline float sampling_scale(float temperature) {
  return std::min(kLog2E / temperature, std::numeric_limits<float>::max());
}

}  // namespace troupe::kernels
