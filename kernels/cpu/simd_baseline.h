#pragma once
// Vectors of four floats in the compiler's own terms, without fused multiply-add: SSE2 on x86-64. The
// reference set: it runs anywhere.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gpu/dtype.h"

namespace troupe::kernels {

struct Baseline {
  typedef float F __attribute__((vector_size(16)));
  typedef std::int32_t I __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 1;
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

 private:
  static F select(I mask, F a, F b) {
    return reinterpret_cast<F>((mask & reinterpret_cast<I>(a)) | (~mask & reinterpret_cast<I>(b)));
  }
};

}  // namespace troupe::kernels
