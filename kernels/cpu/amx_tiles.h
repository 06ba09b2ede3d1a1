#pragma once
// The tile instructions of AMX, a function each; tests/kernels/emulated_tiles.h has the same in plain C++.
// They need shapes that the same thread configured, and the process the system's permission
// (gpu/isa_x86.cpp).
#include <immintrin.h>

#include <atomic>
#include <cstddef>

#include "kernels/cpu/tile_registers.h"

namespace troupe::kernels {

struct AmxTiles {
  static void configure(const TileShapes& shapes) {
    before_load();
    _tile_loadconfig(&shapes);
  }
  static void release() { _tile_release(); }

  template <int Half, int Side>
  static void zero_sums() {
    if constexpr (Half == 0 && Side == 0) _tile_zero(0);
    if constexpr (Half == 0 && Side == 1) _tile_zero(1);
    if constexpr (Half == 1 && Side == 0) _tile_zero(2);
    if constexpr (Half == 1 && Side == 1) _tile_zero(3);
  }
  /// Rows are `stride` bytes apart.
  template <int Half, int Side>
  static void load_sums(const void* from, std::size_t stride) {
    before_load();
    if constexpr (Half == 0 && Side == 0) _tile_loadd(0, from, stride);
    if constexpr (Half == 0 && Side == 1) _tile_loadd(1, from, stride);
    if constexpr (Half == 1 && Side == 0) _tile_loadd(2, from, stride);
    if constexpr (Half == 1 && Side == 1) _tile_loadd(3, from, stride);
  }
  template <int Half, int Side>
  static void store_sums(void* to, std::size_t stride) {
    if constexpr (Half == 0 && Side == 0) _tile_stored(0, to, stride);
    if constexpr (Half == 0 && Side == 1) _tile_stored(1, to, stride);
    if constexpr (Half == 1 && Side == 0) _tile_stored(2, to, stride);
    if constexpr (Half == 1 && Side == 1) _tile_stored(3, to, stride);
  }
  template <int Half>
  static void load_operands(const void* from, std::size_t stride) {
    before_load();
    if constexpr (Half == 0) _tile_loadd(4, from, stride);
    if constexpr (Half == 1) _tile_loadd(5, from, stride);
  }
  template <int Side>
  static void load_weights(const void* from, std::size_t stride) {
    before_load();
    if constexpr (Side == 0) _tile_loadd(6, from, stride);
    if constexpr (Side == 1) _tile_loadd(7, from, stride);
  }
  /// sums[m][n] += Σ over pairs k of operands[m][2k] · weights[k][2n] and operands[m][2k + 1] ·
  /// weights[k][2n + 1], which are summed apart, in rising order, by fused multiply-adds in fp32 from 0 on,
  /// and then added to each other and to the sum. Subnormal numbers count as 0 everywhere.
  template <int Half, int Side>
  static void add_bf16_products() {
    if constexpr (Half == 0 && Side == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (Half == 0 && Side == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (Half == 1 && Side == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (Half == 1 && Side == 1) _tile_dpbf16ps(3, 5, 7);
  }

 private:
  /// GCC 12 does not know that these instructions read memory: it might write it later.
  static void before_load() { std::atomic_signal_fence(std::memory_order_seq_cst); }
};

}  // namespace troupe::kernels
