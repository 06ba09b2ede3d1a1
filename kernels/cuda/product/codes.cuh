#pragma once
// Codes of quantised weights as operands of mma.sync and wgmma: 16 bytes as they lie in memory (layout.h),
// expanded to bf16. Everything that a product's kernel needs to know of a format is here; kernels/README.md,
// "Formats of weights", says how one more is added.
//
// Expansion is exact: a bf16 holds every code. Codes are two's complement, so that zeroed padding is zero
// weights.
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/product/layout.h"

namespace troupe::kernels::cuda {

/// 16-bit weights: the operand is what lies in memory.
struct PlainCodes {
  static constexpr int kOperands = 1;  ///< pieces of 64 bytes of x that 64 bytes of a row multiply
  static constexpr bool kOutputScales = false, kGroupScales = false, kBlockScales = false;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int) { return codes; }
};

struct Int8Codes {
  static constexpr int kOperands = 2;
  static constexpr bool kOutputScales = true, kGroupScales = false, kBlockScales = false;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int i) {
    const std::uint32_t low = i == 0 ? codes.x : codes.z, high = i == 0 ? codes.y : codes.w;
    return make_uint4(int8_pair(low), int8_pair(low >> 8), int8_pair(high), int8_pair(high >> 8));
  }
};

struct Int4Codes {
  static constexpr int kOperands = 4;
  static constexpr bool kOutputScales = true, kGroupScales = false, kBlockScales = false;

  /// Codes at bits 0 … 3 and 16 … 19, as bf16: 128 + (code + 8), less 136.
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t codes) {
    return subtract_pairs(ptx::mask_and_flip(codes, 0x000f000fu, 0x43084308u), 0x43084308u);
  }
  __device__ __forceinline__ static uint4 operand(uint4 codes, int i) {
    const std::uint32_t word = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
    return make_uint4(pair(word), pair(word >> 4), pair(word >> 8), pair(word >> 12));
  }
};

/// int4 whose scales belong to groups of inputs. An operand is code * scale: exact for group_scale()'s
/// scales.
struct GroupedInt4Codes : Int4Codes {
  static constexpr bool kOutputScales = false, kGroupScales = true;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int i, Bf16 scale) {
    const std::uint32_t both = pack_two<Bf16>(to_float(scale), to_float(scale));
    const uint4 v = Int4Codes::operand(codes, i);
    return make_uint4(multiply_pairs(v.x, both), multiply_pairs(v.y, both), multiply_pairs(v.z, both),
                      multiply_pairs(v.w, both));
  }
};

/// fp8, which is multiplied by x in codes: the operand is what lies in memory. The sum over each block of
/// inputs is multiplied by the scales of x and of the weights.
struct Fp8Codes {
  static constexpr int kOperands = 1;
  static constexpr bool kOutputScales = false, kGroupScales = false, kBlockScales = true;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int) { return codes; }
};

/// Calls function(Codes{}) with the codes of a format that tensor cores multiply by x in numbers. True if
/// there are any.
template <class Function>
bool with_codes(const WeightFormat& format, Function&& function) {
  switch (format.kind) {
    case WeightKind::bf16:
    case WeightKind::f16: function(PlainCodes{}); return true;
    case WeightKind::int8: function(Int8Codes{}); return true;
    case WeightKind::int4:
      format.group == 0 ? function(Int4Codes{}) : function(GroupedInt4Codes{});
      return true;
    default: return false;
  }
}

}  // namespace troupe::kernels::cuda
