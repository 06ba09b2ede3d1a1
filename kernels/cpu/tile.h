#pragma once
// The inner product that everything else is made of: a few rows of x times one panel of 32 outputs.
//
// Each of the R × 32 sums is one accumulator that runs over the inputs in rising order, so its bits do not
// depend on R: a row alone (a decode step, bound by reading the panel once) and a row among hundreds
// (a prompt, bound by arithmetic) get the same. With bf16 dot products, R = 12 rows × 2 vectors are 24
// accumulators: enough independent chains to hide the latency, and 14 loads for 24 products.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/dtype.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// What a row of x is made of when it enters the tile: bf16 pairs for the bf16 dot product, floats else.
template <class V, DType T>
using Operand = std::conditional_t<V::kBf16Dot && T == DType::bf16, std::uint16_t, float>;

template <class V, DType T>
using Stored = std::conditional_t<T == DType::f32, float, std::uint16_t>;

/// Where sums begin that do not go on from others.
alignas(64) inline constexpr float kZeros[kPanel] = {};

/// A set whose bf16 product is one of matrices in registers, with the arguments and results of a tile. It
/// multiplies 32 inputs at a step, from the first on: a product in chunks has to cut at multiples of 32.
template <class V>
concept MultipliesMatrices = requires(const TileArgs& a) {
  V::multiply_bf16(a);
  V::whole_rows(0);
};

template <class V, DType T, int R>
void tile_of(const TileArgs& a) {
  using F = typename V::F;
  constexpr int kVectors = kPanel / V::kLanes;
  constexpr int kStep = T == DType::bf16 ? 2 : 1;  // inputs that lie side by side
  const auto* w = static_cast<const Stored<V, T>*>(a.panel);
  const auto* x = static_cast<const Operand<V, T>*>(a.x);
  const std::size_t ldx = a.ldx;
  constexpr std::size_t kStepBytes = kStep * kPanel * sizeof *w;
  const auto* ahead = static_cast<const char*>(a.ahead != nullptr ? a.ahead : a.panel);
  const auto calls = static_cast<std::size_t>(a.ahead_calls);
  const std::size_t ahead_step = (kStepBytes + calls - 1) / calls;

  // Zeros are loaded too: sums that come from two branches are spilled where the branches meet.
  const float* const start = a.accumulate ? a.c : kZeros;
  const std::size_t start_ld = a.accumulate ? a.ldc : 0;
  F sum[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V::load(start + r * start_ld + v * V::kLanes);
  }
  for (int k = 0; k < a.inputs; k += kStep) {
    if constexpr (V::kBf16Dot && T == DType::bf16) {
      typename V::W weights[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) weights[v] = V::load_weights(w + v * 2 * V::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto pair = V::broadcast_pair(x + r * ldx + k);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] = V::dot(sum[r][v], weights[v], pair);
      }
    } else if constexpr (T == DType::bf16) {
      // As many vectors of weights at once as there are registers for: an x is then broadcast once for all.
      constexpr int kAtOnce = V::kLanes == 16 ? kVectors : 1;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; v += kAtOnce) {
        F even[kAtOnce], odd[kAtOnce];
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) V::load_bf16_pairs(w + (v + i) * 2 * V::kLanes, even[i], odd[i]);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const F x0 = V::set1(x[r * ldx + k]);
#pragma GCC unroll 2
          for (int i = 0; i < kAtOnce; ++i) sum[r][v + i] = V::fma(x0, even[i], sum[r][v + i]);
          const F x1 = V::set1(x[r * ldx + k + 1]);
#pragma GCC unroll 2
          for (int i = 0; i < kAtOnce; ++i) sum[r][v + i] = V::fma(x1, odd[i], sum[r][v + i]);
        }
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        F weights;
        if constexpr (T == DType::f16) {
          weights = V::load_f16(w + v * V::kLanes);
        } else {
          weights = V::load(w + v * V::kLanes);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][v] = V::fma(V::set1(x[r * ldx + k]), weights, sum[r][v]);
      }
    }
    __builtin_prefetch(ahead, 0, 2);
    if (kStepBytes > 64 && ahead_step > 64) __builtin_prefetch(ahead + 64, 0, 2);
    ahead += ahead_step;
    w += kStep * kPanel;
  }
  float* const c = a.c;
  const std::size_t ldc = a.ldc;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::store(c + r * ldc + v * V::kLanes, sum[r][v]);
  }
}

template <class V, DType T, int R = V::kTileRows>
void tile(const TileArgs& a) {
  if constexpr (MultipliesMatrices<V> && T == DType::bf16) {
    V::multiply_bf16(a);
  } else {
    if constexpr (R > 1) {
      if (a.rows < R) return tile<V, T, R - 1>(a);
    }
    tile_of<V, T, R>(a);
  }
}

}  // namespace troupe::kernels
