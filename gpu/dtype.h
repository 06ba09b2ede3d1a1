#pragma once
// Element types of weights, activations and KV memory, and the scalar conversions between them.
//
// A dtype names what is stored and what enters a dot product; every sum is fp32. Conversions round to
// nearest, ties to even, and keep NaN and infinity.
#include <bit>
#include <cstddef>
#include <cstdint>

namespace troupe {

enum class DType : std::uint32_t { bf16 = 0, f16 = 1, f32 = 2 };

inline constexpr int kDTypes = 3;

constexpr std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }
constexpr const char* to_string(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

inline std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                        // below the smallest normal: 0.5 aligns the bits
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u);
  }
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}

/// Element `index` of an array of `dtype`.
inline float load_element(const void* data, DType dtype, std::size_t index) {
  switch (dtype) {
    case DType::bf16: return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f16: return f16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f32: return static_cast<const float*>(data)[index];
  }
  return 0;
}

inline void store_element(void* data, DType dtype, std::size_t index, float value) {
  switch (dtype) {
    case DType::bf16: static_cast<std::uint16_t*>(data)[index] = float_to_bf16(value); return;
    case DType::f16: static_cast<std::uint16_t*>(data)[index] = float_to_f16(value); return;
    case DType::f32: static_cast<float*>(data)[index] = value; return;
  }
}

}  // namespace troupe
