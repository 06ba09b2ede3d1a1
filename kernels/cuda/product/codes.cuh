#pragma once
// Codes of quantised weights as operands of mma.sync and wgmma: 16 bytes as they lie in memory (layout.h),
// expanded to bf16. Everything that a product's kernel needs to know of a format is here; kernels/README.md,
// "Formats of weights", says how one more is added.
//
// Expansion is exact: a bf16 holds every code. Codes are two's complement, so that zeroed padding is zero
// weights.
#include <cstdint>
#include <tuple>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/product/layout.h"
#include "kernels/cuda/product/wint2_layout.h"

namespace troupe::kernels::cuda {

/// 16-bit weights: the operand is what lies in memory.
struct PlainCodes {
  static constexpr int kOperands = 1;  ///< pieces of 64 bytes of x that 64 bytes of a row multiply
  static constexpr bool kOutputScales = false, kGroupScales = false, kBlockScales = false, kLines = false;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int) { return codes; }
};

struct Int8Codes {
  static constexpr int kOperands = 2;
  static constexpr bool kOutputScales = true, kGroupScales = false, kBlockScales = false, kLines = false;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int i) {
    const std::uint32_t low = i == 0 ? codes.x : codes.z, high = i == 0 ? codes.y : codes.w;
    return make_uint4(int8_pair(low), int8_pair(low >> 8), int8_pair(high), int8_pair(high >> 8));
  }
};

struct Int4Codes {
  static constexpr int kOperands = 4;
  static constexpr bool kOutputScales = true, kGroupScales = false, kBlockScales = false, kLines = false;

  /// Codes at bits 0 … 3 and 16 … 19, as bf16: 128 + (code + 8), less 136.
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t codes) {
    return subtract_pairs(ptx::mask_and_flip(codes, 0x000f000fu, 0x43084308u), 0x43084308u);
  }
  __device__ __forceinline__ static uint4 operand(uint4 codes, int i) {
    const std::uint32_t word = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
    return make_uint4(pair(word), pair(word >> 4), pair(word >> 8), pair(word >> 12));
  }
};

/// int4 beside x in int8, for wgmma alone: an operand is 16 · code in int8, a mask and a shift for eight
/// codes. x is in the order of static_inputs.h.
struct Int4BesideInt8 : Int4Codes {
  static constexpr float kFactor = 1.0f / 16;  ///< of a sum

  /// Two words of a lane's codes; each gives the inputs that lie in its lower and in its upper halves of
  /// bytes.
  __device__ __forceinline__ static uint4 operand(uint4 codes, int i) {
    constexpr std::uint32_t kUpper = 0xf0f0f0f0u;
    const std::uint32_t first = i == 0 ? codes.x : codes.z, second = i == 0 ? codes.y : codes.w;
    return make_uint4(first << 4 & kUpper, first & kUpper, second << 4 & kUpper, second & kUpper);
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
  static constexpr bool kOutputScales = false, kGroupScales = false, kBlockScales = true, kLines = false;

  __device__ __forceinline__ static uint4 operand(uint4 codes, int) { return codes; }
};

/// wint2 (kernels/wint2.h). Its operand is a code times its group's scale: exact but for odd products above
/// 256, which are rounded to bf16; super scales multiply the sums. A byte's word comes from two additions and
/// a fused product of floats, as the rule says, and the addition that makes the word of a float cuts its
/// fraction off. The word and itself 19 bits higher have two neighbouring windows 16 bits apart.
struct Wint2Codes {
  static constexpr int kOperands = 8;
  static constexpr bool kOutputScales = true, kGroupScales = false, kBlockScales = false, kLines = true;

  /// Of an output, the same for all of its bytes.
  struct Line {
    float scale = 0, zp = 0;

    Line() = default;
    /// `floats`: of output 0; padded(outputs) super scales, then the code scales, then the zero points.
    __device__ __forceinline__ Line(const float* floats, int outputs, int output)
        : scale(__ldg(floats + outputs + output)), zp(__ldg(floats + 2 * outputs + output)) {}
  };
  /// A group's scale s as a pair, and what 128 + kWint2Offset is times it.
  struct Scale {
    std::uint32_t factor = 0, offset = 0;

    Scale() = default;
    /// The lower four bits of `scale`.
    __device__ __forceinline__ explicit Scale(std::uint32_t scale)
        : factor(subtract_pairs((scale & 15) * 0x00010001u + 0x43004300u, 0x43004300u)),
          offset(multiply_pairs(factor, 0xc320c320u)) {}
  };

  /// c of byte kByte of `bytes`, and c << 19.
  template <int kByte>
  __device__ __forceinline__ static std::uint32_t word_twice(std::uint32_t bytes, const Line& line) {
    constexpr std::uint32_t kMagic = 0x4b000000u;  // 2^23 as a float, whose last bit is 1
    const float magic = __uint_as_float(kMagic);
    const float byte = __uint_as_float(__byte_perm(bytes, kMagic, 0x7440 + kByte)) - magic;
    const float word = __fadd_rd(__fadd_rn(__fmaf_rn(byte, line.scale, line.zp), 0.5f), magic);
    return __float_as_uint(word) * ((1u << 19) + 1) - kMagic;
  }
  /// a * b + c of pairs of bf16, rounded once.
  __device__ __forceinline__ static std::uint32_t fused(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    using Pair = __nv_bfloat162;
    const Pair d = __hfma2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b),
                           reinterpret_cast<const Pair&>(c));
    return reinterpret_cast<const std::uint32_t&>(d);
  }
  /// Windows at bits 0 … 5 and 16 … 21 as codes times the scale: (128 + window) * s - 160 s.
  __device__ __forceinline__ static std::uint32_t pair(std::uint32_t windows, const Scale& s) {
    return fused(ptx::mask_and_flip(windows, 0x003f003fu, 0x43004300u), s.factor, s.offset);
  }
  template <int kByte>
  __device__ __forceinline__ static uint2 four(std::uint32_t bytes, const Line& line, const Scale& s) {
    const std::uint32_t words = word_twice<kByte>(bytes, line);
    return make_uint2(pair(words >> 9, s), pair(words >> 3, s));
  }
  /// Of two operands of a word of a lane's codes, the first or the second.
  __device__ __forceinline__ static uint4 operand_of(std::uint32_t word, bool second, const Line& line,
                                                     const Scale& s) {
    const uint2 a = second ? four<2>(word, line, s) : four<0>(word, line, s);
    const uint2 b = second ? four<3>(word, line, s) : four<1>(word, line, s);
    return make_uint4(a.x, a.y, b.x, b.y);
  }
  __device__ __forceinline__ static uint4 operand(uint4 codes, int i, const Line& line, const Scale& s) {
    const std::uint32_t word = i < 2 ? codes.x : i < 4 ? codes.y : i < 6 ? codes.z : codes.w;
    return operand_of(word, i % 2 != 0, line, s);
  }
};

/// The activations and the codes of a CodeKind, by its number.
template <class Activations, class CodesOfKind>
struct Multiplied {
  using T = Activations;
  using Codes = CodesOfKind;
};
template <int kKind>
using MultipliedAt = std::tuple_element_t<
    kKind, std::tuple<Multiplied<Bf16, PlainCodes>, Multiplied<F16, PlainCodes>, Multiplied<Bf16, Fp8Codes>,
                      Multiplied<Bf16, Int8Codes>, Multiplied<Bf16, Int4Codes>,
                      Multiplied<Bf16, GroupedInt4Codes>, Multiplied<Bf16, Wint2Codes>>>;

}  // namespace troupe::kernels::cuda
