#pragma once
// How a weight matrix is stored, apart from the type of the activations that it multiplies.
//
// A quantised weight is code * scale. Scales follow the codes in the matrix's memory (matrix.h). How codes
// and scales are made from a checkpoint's numbers: quantize.h.
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/dtype.h"

namespace troupe::kernels {

enum class WeightKind : std::uint8_t {
  bf16,
  f16,
  f32,
  int8,   ///< codes -127 … 127
  int4,   ///< codes -8 … 7, of which quantisation makes -7 … 7
  fp8,    ///< e4m3; a scale for each 128 outputs × 128 inputs
  wint2,  ///< a byte for four inputs, decoded by a line of its output; see wint2.h
};

/// Inputs that share an fp8 scale, as many outputs.
inline constexpr int kFp8Block = 128;

/// Inputs that share a wint2 scale of 4 bits, and those of a byte of two scales: a matrix has whole bytes.
inline constexpr int kWint2Group = 64, kWint2Unit = 2 * kWint2Group;

struct WeightFormat {
  WeightKind kind = WeightKind::bf16;
  DType activations = DType::bf16;  ///< of the rows that the matrix multiplies; of a float format its own
  int group = 0;                    ///< int4: inputs that share a scale: 32, 64 or 128; 0: all inputs

  constexpr WeightFormat() = default;
  constexpr WeightFormat(DType dtype)  // NOLINT: a dtype is a format
      : kind(dtype == DType::bf16  ? WeightKind::bf16
             : dtype == DType::f16 ? WeightKind::f16
                                   : WeightKind::f32),
        activations(dtype) {}
  constexpr WeightFormat(WeightKind kind, DType activations, int group = 0)
      : kind(kind), activations(activations), group(group) {}

  constexpr bool operator==(const WeightFormat&) const = default;

  constexpr bool quantised() const { return kind >= WeightKind::int8; }
  constexpr bool fp8() const { return kind == WeightKind::fp8; }
  /// True if each output has one scale for all its inputs.
  constexpr bool scales_outputs() const {
    return kind == WeightKind::int8 || (kind == WeightKind::int4 && group == 0);
  }
  constexpr int bits() const {
    switch (kind) {
      case WeightKind::f32: return 32;
      case WeightKind::bf16:
      case WeightKind::f16: return 16;
      case WeightKind::int4: return 4;
      case WeightKind::wint2: return 2;
      default: return 8;
    }
  }
};

inline std::string to_string(const WeightFormat& format) {
  switch (format.kind) {
    case WeightKind::bf16: return "bfloat16";
    case WeightKind::f16: return "float16";
    case WeightKind::f32: return "float32";
    case WeightKind::int8: return "int8";
    case WeightKind::int4:
      return format.group == 0 ? "int4" : "int4 in groups of " + std::to_string(format.group);
    case WeightKind::fp8: return "fp8 in blocks of 128 × 128";
    case WeightKind::wint2: return "wint2";
  }
  return "?";
}

}  // namespace troupe::kernels
