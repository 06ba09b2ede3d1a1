#pragma once
// Vectors of four floats in the compiler's own terms, without fused multiply-add: SSE2 on x86-64. The
// reference set: it runs anywhere.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gpu/dtype.h"
#include "kernels/weight_format.h"

namespace troupe::kernels {

/// Dot products as in dots.h: bytes are widened to 16 bits, and pairs of products added in 32.
template <WeightKind K>
struct WidenedDots {
  typedef std::uint8_t U8 __attribute__((vector_size(8)));
  typedef std::int16_t I16 __attribute__((vector_size(16)));
  typedef std::int32_t I32 __attribute__((vector_size(16)));
  typedef float F __attribute__((vector_size(16)));
  static constexpr int kParts = K == WeightKind::int4 ? 2 : 1;  // of 4 inputs
  struct Sum {
    I32 half[2];  // two numbers for each of two lanes
  };
  struct Codes {
    I16 part[kParts][2];
  };
  struct Operand {
    I16 part[kParts];
  };

  static Sum start(std::int32_t) { return {}; }
  static Codes load(const std::uint8_t* p) {
    Codes codes;
    for (int half = 0; half < 2; ++half) {
      U8 bytes;
      std::memcpy(&bytes, p + 8 * half, sizeof bytes);
      const I16 wide = __builtin_convertvector(bytes, I16);
      codes.part[0][half] = K == WeightKind::int4 ? wide & 15 : wide;
      if constexpr (K == WeightKind::int4) codes.part[1][half] = wide >> 4;
    }
    return codes;
  }
  template <class Bytes>
  static Codes of(const Bytes& windows) {
    return load(windows.data());
  }
  static Operand broadcast(const std::int8_t* x) {
    Operand operand;
    for (int i = 0; i < kParts; ++i, x += 4)
      operand.part[i] = I16{x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
    return operand;
  }
  static void add(Sum& sum, const Codes& codes, const Operand& operand) {
    for (int i = 0; i < kParts; ++i) {
      for (int half = 0; half < 2; ++half) {
        const I16 product = codes.part[i][half] * operand.part[i];  // |255 * 127| < 32768
        I32 pairs;
        std::memcpy(&pairs, &product, sizeof pairs);
        sum.half[half] += (pairs >> 16) + (pairs << 16 >> 16);
      }
    }
  }
  static F finish(const Sum& sum, std::int32_t correction) {
    const I32 a = sum.half[0], b = sum.half[1];
    const I32 total = I32{a[0], a[2], b[0], b[2]} + I32{a[1], a[3], b[1], b[3]} + correction;
    return __builtin_convertvector(total, F);
  }
};

struct Baseline {
  typedef float F __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 1;
  static constexpr int kNearRows = 1;
  static constexpr bool kBf16Dot = false;

  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return select(a > b, a, b); }
  static F nearest(F a) {  // |a| < 2^22
    const F magic = set1(12582912.0f);
    return (a + magic) - magic;
  }
  static F scale_by_power(F a, F n) {  // a * 2^n, n integral in -126 … 127
    const I bits = (__builtin_convertvector(n, I) + 127) << 23;
    return a * reinterpret_cast<F>(bits);
  }
  static F zero_where_below(F x, F limit, F value) {
    return reinterpret_cast<F>(~(x < limit) & reinterpret_cast<I>(value));
  }
  static bool all_finite(F x) {
    const I bad = (reinterpret_cast<I>(x) & 0x7f800000) == 0x7f800000;
    return (bad[0] | bad[1] | bad[2] | bad[3]) == 0;
  }
  static bool any_above(F x, F limit) {
    const I above = x > limit;
    return (above[0] | above[1] | above[2] | above[3]) != 0;
  }
  static float first(F v) { return v[0]; }
  static float sum_lanes(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float max_lanes(F v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
  static void store_int(std::uint32_t* p, F v) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint32_t>(v[i]);
  }

  static void load_bf16_pairs(const std::uint16_t* p, F& even, F& odd) {
    I bits;
    std::memcpy(&bits, p, sizeof bits);
    even = reinterpret_cast<F>(bits << 16);
    odd = reinterpret_cast<F>(bits & static_cast<std::int32_t>(0xffff0000u));
  }
  static F load_bf16(const std::uint16_t* p) {
    return F{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
  }
  static F load_f16(const std::uint16_t* p) {
    return F{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])};
  }
  static void store_bf16(std::uint16_t* p, F v) {
    for (int i = 0; i < 4; ++i) p[i] = float_to_bf16(v[i]);
  }
  static void store_f16(std::uint16_t* p, F v) {
    for (int i = 0; i < 4; ++i) p[i] = float_to_f16(v[i]);
  }

  static constexpr int kDotRows = 1;
  static constexpr int kNearDotRows = 0;
  static constexpr int kDotVectors = 1;
  template <WeightKind K>
  using Dots = WidenedDots<K>;
  /// a * b + c, rounded once.
  static F fused(F a, F b, F c) {
    return F{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]),
             std::fma(a[3], b[3], c[3])};
  }
  static F truncated(F a) { return __builtin_convertvector(__builtin_convertvector(a, I), F); }
  /// Where `x` is less, it takes the place of `least`, and its tag that of `tag`.
  static void keep_less(F& least, F& tag, F x, F its_tag) {
    const I less = x < least;
    least = select(less, x, least);
    tag = select(less, its_tag, tag);
  }
  static F load_as_floats(const std::uint8_t* p) {
    return F{float(p[0]), float(p[1]), float(p[2]), float(p[3])};
  }
  /// The upper or the lower half of each byte.
  static F load_halves(const std::uint8_t* p, bool upper) {
    const auto half = [&](int i) { return float(upper ? p[i] >> 4 : p[i] & 15); };
    return F{half(0), half(1), half(2), half(3)};
  }
  /// Of each number's integer bits 9 … 14, 6 … 11, 3 … 8 and 0 … 5, a byte each.
  static std::array<std::uint8_t, 16> windows(F words) {
    std::array<std::uint8_t, 16> bytes;
    for (int i = 0; i < 16; ++i)
      bytes[std::size_t(i)] =
          static_cast<std::uint8_t>(static_cast<int>(words[i / 4]) >> (9 - i % 4 * 3) & 63);
    return bytes;
  }
  static void store_bytes(std::uint8_t* p, const std::array<std::uint8_t, 16>& a) {
    std::memcpy(p, a.data(), a.size());
  }
  /// Integers of -128 … 127.
  static void store_codes(std::int8_t* p, F v) {
    for (int i = 0; i < 4; ++i) p[i] = static_cast<std::int8_t>(v[i]);
  }

 private:
  static F select(I mask, F a, F b) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(a)) | (~mask & reinterpret_cast<I>(b)));
  }
};

}  // namespace troupe::kernels
