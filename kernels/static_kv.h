#pragma once
// Keys and values as int8 codes by static scales, one for each channel.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/quantize.h"

namespace troupe::kernels {

/// Static scales of a layer's int8 keys and values: the largest magnitude of each channel, of kv_heads ·
/// head_dim. Null: each token and head has scales of its own.
struct StaticKv {
  const float* keys = nullptr;
  const float* values = nullptr;

  constexpr bool given() const { return keys != nullptr; }
};

/// Of a channel with a static scale: number · factor, rounded half away from zero and clamped.
inline std::uint8_t static_kv_code(float number, float factor) {
  return static_cast<std::uint8_t>(
      static_cast<int>(std::round(std::clamp(number * factor, -kLargestInt8, kLargestInt8))));
}

}  // namespace troupe::kernels
