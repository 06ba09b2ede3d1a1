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
// in its lower half and input i + 4 in its upper half. wint2 has for each 4 inputs 32 bytes, one for an
// output, which are decoded on the way to the product; where several tiles of rows share a part of a panel,
// before it (Windows), into pieces of 4 bytes.
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/routines.h"
#include "kernels/cpu/wint2_words.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

template <class V, WeightKind K, bool Groups, bool Windows, int R>
void quantised_tile_of(const TileArgs& a) {
  using F = typename V::F;
  using Dots = typename V::template Dots<K>;
  constexpr int kVectors = kPanel / V::kLanes;
  constexpr int kAtOnce = V::kDotVectors;
  constexpr int kStep = K == WeightKind::int4 ? 8 : 4;  // inputs of a piece
  constexpr bool kWint2 = K == WeightKind::wint2, kDecodes = kWint2 && !Windows;
  constexpr std::size_t kStepBytes = kDecodes ? kPanel : 4 * kPanel;
  constexpr std::size_t kGroupBytes = kDotInputs / kStep * kStepBytes;
  const auto* w = static_cast<const std::uint8_t*>(a.panel);
  const auto* x = static_cast<const std::int8_t*>(a.x);
  const auto* groups = reinterpret_cast<const std::byte*>(a.x_groups);
  // Offsets, because with a pointer for each row there are not registers enough.
  std::size_t row[R];  // bytes from the first row to row r
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) row[r] = static_cast<std::size_t>(r) * a.ldx;
  const auto group_of = [&](int r) -> const OperandGroup& {
    return *reinterpret_cast<const OperandGroup*>(groups + row[r]);
  };
  const auto* ahead = static_cast<const char*>(a.ahead != nullptr ? a.ahead : a.panel);
  const auto calls = static_cast<std::size_t>(a.ahead_calls);
  const std::size_t ahead_step = (kGroupBytes / 64 + calls - 1) / calls * 64;

  F sum[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = a.accumulate ? V::load(a.c + r * a.ldc + v * V::kLanes) : V::set1(0);
    }
  }
  for (int g = 0; g < a.inputs / kDotInputs; ++g) {
    for (std::size_t i = 0; i < ahead_step; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    ahead += ahead_step;
#pragma GCC unroll 1
    for (int v = 0; v < kVectors; v += kAtOnce) {
      typename Dots::Sum dot[R][kAtOnce];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) dot[r][i] = Dots::start(group_of(r).correction);
      }
      [[maybe_unused]] Wint2Line<V> line[kAtOnce];
      if constexpr (kDecodes) {
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) line[i] = Wint2Line<V>(a.lines + (v + i) * V::kLanes);
      }
      const auto add = [&](int step) {
        typename Dots::Codes codes[kAtOnce];
#pragma GCC unroll 2
        for (int i = 0; i < kAtOnce; ++i) {
          const std::uint8_t* const at =
              w + std::size_t(step) * kStepBytes + std::size_t(V::kLanes * (v + i)) * (kDecodes ? 1 : 4);
          if constexpr (kDecodes) {
            codes[i] = Dots::of(line[i].windows(at));
          } else {
            codes[i] = Dots::load(at);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const auto operand = Dots::broadcast(x + row[r] + step * kStep);
#pragma GCC unroll 2
          for (int i = 0; i < kAtOnce; ++i) Dots::add(dot[r][i], codes[i], operand);
        }
      };
      if constexpr (kAtOnce == kVectors || R == 1) {
#pragma GCC unroll 8
        for (int step = 0; step < kDotInputs / kStep; ++step) add(step);
      } else {
#pragma GCC unroll 2  // all eight, and the compiler loads x once for all vectors and spills it
        for (int step = 0; step < kDotInputs / kStep; ++step) add(step);
      }
#pragma GCC unroll 2
      for (int i = 0; i < kAtOnce; ++i) {
        F scale_w = V::set1(0);
        if constexpr (kWint2) {
          constexpr int kBlocks = kWint2Unit / kDotInputs;
          scale_w = V::load_halves(a.group_scales + g / kBlocks * kPanel + (v + i) * V::kLanes,
                                   g % kBlocks < kBlocks / 2);
        } else if constexpr (Groups) {
          const auto* scales =
              static_cast<const std::uint16_t*>(a.scales) + g * kDotInputs / a.group * kPanel;
          scale_w = V::load_bf16(scales + (v + i) * V::kLanes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          F scale = V::set1(group_of(r).scale);
          if constexpr (Groups) scale = V::mul(scale, scale_w);
          const F products = Dots::finish(dot[r][i], group_of(r).correction);
          sum[r][v + i] = V::fma(products, scale, sum[r][v + i]);
        }
      }
    }
    w += kGroupBytes;
    x += kDotInputs;
    groups += sizeof(OperandGroup);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      F s = sum[r][v];
      if ((!Groups || kWint2) && a.scales != nullptr) {
        s = V::mul(s, V::load(static_cast<const float*>(a.scales) + v * V::kLanes));
      }
      V::store(a.c + r * a.ldc + v * V::kLanes, s);
    }
  }
}

template <class V, WeightKind K, bool Groups, bool Windows = false, int R = V::kDotRows>
void quantised_tile(const TileArgs& a) {
  if constexpr (R > 1) {
    if (a.rows < R) return quantised_tile<V, K, Groups, Windows, R - 1>(a);
  }
  quantised_tile_of<V, K, Groups, Windows, R>(a);
}

}  // namespace troupe::kernels
