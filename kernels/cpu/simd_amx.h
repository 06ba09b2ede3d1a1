#pragma once
// AVX-512 with bf16 and products of tiles (AMX): a row of x against 16 outputs and 32 inputs of bf16 is a
// sixteenth of an instruction.
//
// A call takes up to 32 rows, as two halves of 16, times a panel, whose two sides of 16 outputs are tiles of
// weights as they lie: a line of 64 bytes for 2 inputs, lines of a side 128 bytes apart.
// Four tiles of sums share two of operands and two of weights, so that a product costs one load.
//
// A row's bits do not depend on the other rows: every call goes through tiles, and an instruction's row of
// sums depends on the same row of operands. It takes 32 inputs at a time, in fixed places, the last ones with
// zeros behind them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/routines.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/tile_registers.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

inline constexpr int kHalfRows = 16, kSideOutputs = 16;
inline constexpr int kTileInputs = 32;
inline constexpr std::size_t kPanelLine = 4 * kPanel;

/// The calling thread's shapes. They are loaded when a call needs others than the last one, which costs some
/// 200 cycles, and released at the end of a piece of work (TileUse).
template <class Tiles>
class ShapesInUse {
 public:
  /// `rows` of operands in two halves.
  static void need(int rows) {
    const int first = rows < kHalfRows ? rows : kHalfRows, second = rows - first;
    if (first_ == first && (second == 0 || second_ == second)) return;
    TileShapes shapes;
    for (int half = 0; half < 2; ++half) {
      const auto half_rows = static_cast<std::uint8_t>(half == 0 ? first : second);
      if (half_rows == 0) continue;
      shapes.rows[operands_register(half)] = half_rows;
      shapes.row_bytes[operands_register(half)] = 2 * kTileInputs;
      for (int side = 0; side < 2; ++side) {
        shapes.rows[sums_register(half, side)] = half_rows;
        shapes.row_bytes[sums_register(half, side)] = 4 * kSideOutputs;
      }
    }
    for (int side = 0; side < 2; ++side) {
      shapes.rows[weights_register(side)] = kTileInputs / 2;
      shapes.row_bytes[weights_register(side)] = 4 * kSideOutputs;
    }
    Tiles::configure(shapes);
    first_ = first;
    second_ = second;
  }
  static void release() {
    if (first_ == 0) return;
    Tiles::release();
    first_ = 0;
  }

 private:
  static inline thread_local int first_ = 0, second_ = 0;  // first_ 0: none
};

template <class Tiles>
struct Amx : Avx512Bf16 {
  static constexpr int kTileRows = 2 * kHalfRows;

  /// Rows that a call may compute for so many: shapes are loaded less often if they are a multiple of 16.
  static constexpr int whole_rows(int rows) {
    return rows <= kHalfRows ? rows : (rows + kHalfRows - 1) / kHalfRows * kHalfRows;
  }

  static void multiply_bf16(const TileArgs& a) {
    ShapesInUse<Tiles>::need(a.rows);
    a.rows > kHalfRows ? multiply_halves<2>(a) : multiply_halves<1>(a);
  }

 private:
  template <int Halves>
  static void multiply_halves(const TileArgs& a) {
    const auto* w = static_cast<const std::byte*>(a.panel);
    const auto* x = static_cast<const std::uint16_t*>(a.x);
    const std::size_t row_bytes = a.ldx * sizeof *x, c_bytes = a.ldc * sizeof(float);
    float* const c[2] = {a.c, a.c + kHalfRows * a.ldc};
    if (a.accumulate) {
      Tiles::template load_sums<0, 0>(c[0], c_bytes);
      Tiles::template load_sums<0, 1>(c[0] + kSideOutputs, c_bytes);
      if constexpr (Halves == 2) {
        Tiles::template load_sums<1, 0>(c[1], c_bytes);
        Tiles::template load_sums<1, 1>(c[1] + kSideOutputs, c_bytes);
      }
    } else {
      Tiles::template zero_sums<0, 0>();
      Tiles::template zero_sums<0, 1>();
      if constexpr (Halves == 2) {
        Tiles::template zero_sums<1, 0>();
        Tiles::template zero_sums<1, 1>();
      }
    }
    constexpr std::size_t kStepBytes = kTileInputs / 2 * kPanelLine;
    const auto* ahead = static_cast<const char*>(a.ahead != nullptr ? a.ahead : a.panel);
    const auto calls = static_cast<std::size_t>(a.ahead_calls);
    const std::size_t ahead_step = (kStepBytes / 64 + calls - 1) / calls * 64;
    int k = 0;
    for (; k + kTileInputs <= a.inputs; k += kTileInputs) {
      for (std::size_t i = 0; i < ahead_step; i += 64) __builtin_prefetch(ahead + i, 0, 2);
      ahead += ahead_step;
      step<Halves>(x + k, row_bytes, w);
      w += kStepBytes;
    }
    if (k < a.inputs) last_step<Halves>(a, x + k, row_bytes, w, a.inputs - k);
    Tiles::template store_sums<0, 0>(c[0], c_bytes);
    Tiles::template store_sums<0, 1>(c[0] + kSideOutputs, c_bytes);
    if constexpr (Halves == 2) {
      Tiles::template store_sums<1, 0>(c[1], c_bytes);
      Tiles::template store_sums<1, 1>(c[1] + kSideOutputs, c_bytes);
    }
  }

  template <int Halves>
  static void step(const std::uint16_t* x, std::size_t row_bytes, const std::byte* w) {
    Tiles::template load_operands<0>(x, row_bytes);
    Tiles::template load_weights<0>(w, kPanelLine);
    Tiles::template add_bf16_products<0, 0>();
    Tiles::template load_weights<1>(w + kPanelLine / 2, kPanelLine);
    Tiles::template add_bf16_products<0, 1>();
    if constexpr (Halves == 2) {
      Tiles::template load_operands<1>(x + kHalfRows * row_bytes / sizeof *x, row_bytes);
      Tiles::template add_bf16_products<1, 0>();
      Tiles::template add_bf16_products<1, 1>();
    }
  }

  /// Fewer than kTileInputs inputs, from copies with zeros behind them: what follows them in memory may be
  /// anything, NaNs too.
  template <int Halves>
  static void last_step(const TileArgs& a, const std::uint16_t* x, std::size_t row_bytes, const std::byte* w,
                        int inputs) {
    alignas(64) std::uint16_t operands[Halves * kHalfRows][kTileInputs] = {};
    alignas(64) std::byte weights[kTileInputs / 2][kPanelLine] = {};
    const auto pairs = static_cast<std::size_t>(inputs + 1) / 2;
    for (int r = 0; r < a.rows; ++r)
      std::memcpy(operands[r], x + static_cast<std::size_t>(r) * (row_bytes / sizeof *x), 4 * pairs);
    std::memcpy(weights, w, pairs * kPanelLine);
    step<Halves>(operands[0], sizeof operands[0], weights[0]);
  }
};

}  // namespace troupe::kernels
