#pragma once
// The inner product with quantised weights: a few rows of x, quantised too, times one panel of 32 outputs.
//
// Inputs come in groups of 32, in rising order. A group's products are added up as integers, which is exact,
// so that all instruction sets get the same; then sum += float(integer) * scale of x (* scale of the weights'
// group) in fp32. As in tile.h, the bits of a sum do not depend on R.
//
// Weights are the unsigned operand of the dot products, so their codes are stored with an offset. The surplus
// is offset * the sum of x's codes: one number for a row and a group, which OperandGroup brings.
//
// A panel holds for each 4 inputs (int4: 8) 32 pieces of 4 bytes, one for an output. An int4 byte has input i
// in its lower half and input i + 4 in its upper half.
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

template <class V, WeightKind K, bool Groups, int R>
void quantised_tile_of(const TileArgs& a) {
  using F = typename V::F;
  using Dots = typename V::template Dots<K>;
  constexpr int kVectors = kPanel / V::kLanes;
  constexpr int kAtOnce = V::kDotVectors;
  constexpr int kStep = K == WeightKind::int4 ? 8 : 4;  // inputs of a piece
  constexpr std::size_t kStepBytes = 4 * kPanel;
  constexpr std::size_t kGroupBytes = kDotInputs / kStep * kStepBytes;
  const auto* w = static_cast<const std::uint8_t*>(a.panel);
  const auto* x = static_cast<const std::int8_t*>(a.x);
  const OperandGroup* groups[R];
  for (int r = 0; r < R; ++r) {
    groups[r] =
        reinterpret_cast<const OperandGroup*>(reinterpret_cast<const std::byte*>(a.x_groups) + r * a.ldx);
  }
  const auto* ahead = static_cast<const char*>(a.ahead != nullptr ? a.ahead : a.panel);
  const auto calls = static_cast<std::size_t>(a.ahead_calls);
  const std::size_t ahead_step = (kGroupBytes / 64 + calls - 1) / calls * 64;

  F sum[R][kVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = a.accumulate ? V::load(a.c + r * a.ldc + v * V::kLanes) : V::set1(0);
    }
  }
  for (int g = 0; g < a.inputs / kDotInputs; ++g) {
    for (std::size_t i = 0; i < ahead_step; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    ahead += ahead_step;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += kAtOnce) {
      typename Dots::Sum dot[R][kAtOnce];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) dot[r][i] = Dots::start(groups[r][g].correction);
      }
#pragma GCC unroll 8
      for (int step = 0; step < kDotInputs / kStep; ++step) {
        typename Dots::Codes codes[kAtOnce];
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) {
          codes[i] = Dots::load(w + std::size_t(step) * kStepBytes + std::size_t(4 * V::kLanes * (v + i)));
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const auto operand = Dots::broadcast(x + r * a.ldx + step * kStep);
#pragma GCC unroll 2
          for (int i = 0; i < kAtOnce; ++i) Dots::add(dot[r][i], codes[i], operand);
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kAtOnce; ++i) {
        F scale_w = V::set1(0);
        if constexpr (Groups) {
          const auto* scales =
              static_cast<const std::uint16_t*>(a.scales) + g * kDotInputs / a.group * kPanel;
          scale_w = V::load_bf16(scales + (v + i) * V::kLanes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          F scale = V::set1(groups[r][g].scale);
          if constexpr (Groups) scale = V::mul(scale, scale_w);
          const F products = Dots::finish(dot[r][i], groups[r][g].correction);
          sum[r][v + i] = V::fma(products, scale, sum[r][v + i]);
        }
      }
    }
    w += kGroupBytes;
    x += kDotInputs;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      F s = sum[r][v];
      if (!Groups && a.scales != nullptr) {
        s = V::mul(s, V::load(static_cast<const float*>(a.scales) + v * V::kLanes));
      }
      V::store(a.c + r * a.ldc + v * V::kLanes, s);
    }
  }
}

template <class V, WeightKind K, bool Groups, int R = V::kDotRows>
void quantised_tile(const TileArgs& a) {
  if constexpr (R > 1) {
    if (a.rows < R) return quantised_tile<V, K, Groups, R - 1>(a);
  }
  quantised_tile_of<V, K, Groups, R>(a);
}

}  // namespace troupe::kernels
