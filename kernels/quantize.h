#pragma once
// How numbers become codes and scales. Both devices and tools/generate/quantise_reference.py follow these
// rules to the bit.
//
//   scale = largest magnitude / largest code, in fp32; of a group (WeightFormat::group) group_scale() of it
//   code  = number / scale in fp32, rounded to the nearest, ties to even, and clamped to the largest code
//
// int8 and int4 share a scale over an output's inputs or over a group of them, fp8 over a block of 128
// outputs × 128 inputs. A scale of 0 has codes of 0. A number that is not finite makes its scale a NaN, by
// which the loader finds it; the codes are then unspecified.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gpu/dtype.h"
#include "kernels/e4m3.h"
#include "kernels/weight_format.h"

namespace troupe::kernels {

inline constexpr float kLargestInt8 = 127, kLargestInt4 = 7, kLargestFp8 = 448;

constexpr float largest_code(WeightKind kind) {
  return kind == WeightKind::int4 ? kLargestInt4 : kind == WeightKind::fp8 ? kLargestFp8 : kLargestInt8;
}

/// The larger magnitude, or a NaN when either number is not finite.
inline float larger_magnitude(float largest, float number) {
  const float magnitude = std::fabs(number);
  if (!(magnitude <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return magnitude > largest ? magnitude : largest;
}

/// The first 5 significant bits of a scale that is not negative. Times a code of int4, which has 3 bits, it
/// is a bf16 exactly: whether a product multiplies codes or their sum by it, the weights are the same. Cut
/// and not rounded, the largest magnitude is below 7.5 scales, so it too is within half a scale of its code,
/// and the other numbers are the closer to theirs.
constexpr float group_scale(float scale) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & 0xfff80000u);
}

inline float scale_for(const WeightFormat& format, float largest) {
  const float scale = largest / largest_code(format.kind);
  return format.group == 0 ? scale : group_scale(scale);
}

/// Of int8 and int4.
inline int code_of(float number, float scale, float largest) {
  if (!(scale > 0)) return 0;
  return static_cast<int>(std::clamp(std::nearbyint(number / scale), -largest, largest));
}

inline std::uint8_t fp8_code_of(float number, float scale) {
  return scale > 0 ? float_to_e4m3(number / scale) : std::uint8_t{0};
}

}  // namespace troupe::kernels
