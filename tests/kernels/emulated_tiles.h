#pragma once
// The tile instructions of kernels/cpu/amx_tiles.h in plain C++, for tests on machines without AMX. What the
// processor answers with a fault breaks an invariant here.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/tile_registers.h"
#include "kernels/emulated_amx.h"

namespace troupe::kernels {

class EmulatedTiles {
 public:
  static constexpr int kRegisters = 8, kRows = 16, kRowBytes = 64;

  static void configure(const TileShapes& shapes) {
    TROUPE_CHECK(shapes.palette == 1 && shapes.start_row == 0);
    for (const std::uint8_t byte : shapes.reserved) TROUPE_CHECK(byte == 0);
    for (int t = 0; t < 16; ++t) {
      const int rows = shapes.rows[t], bytes = shapes.row_bytes[t];
      TROUPE_CHECK(rows <= kRows && bytes <= kRowBytes && (rows == 0) == (bytes == 0));
      TROUPE_CHECK(t < kRegisters || rows == 0);
    }
    State& state = own();
    std::memset(state.data, 0, sizeof state.data);
    state.shapes = shapes;
    state.configured = true;
    ++state.configurations;
  }
  static void release() { own().configured = false; }

  template <int Half, int Side>
  static void zero_sums() {
    std::memset(used(sums_register(Half, Side)), 0, kRows * kRowBytes);
  }
  template <int Half, int Side>
  static void load_sums(const void* from, std::size_t stride) {
    load(sums_register(Half, Side), from, stride);
  }
  template <int Half, int Side>
  static void store_sums(void* to, std::size_t stride) {
    constexpr int kTile = sums_register(Half, Side);
    const std::byte(*data)[kRowBytes] = used(kTile);
    for (int r = 0; r < own().shapes.rows[kTile]; ++r)
      std::memcpy(static_cast<std::byte*>(to) + std::size_t(r) * stride, data[r],
                  own().shapes.row_bytes[kTile]);
  }
  template <int Half>
  static void load_operands(const void* from, std::size_t stride) {
    load(operands_register(Half), from, stride);
  }
  template <int Side>
  static void load_weights(const void* from, std::size_t stride) {
    load(weights_register(Side), from, stride);
  }

  template <int Half, int Side>
  static void add_bf16_products() {
    const Product p = product(Half, Side);
    for (int m = 0; m < p.rows; ++m) {
      alignas(64) float even[16] = {}, odd[16] = {}, sums[16];
      for (int k = 0; k < p.steps; ++k) {
        std::uint32_t pair, weights[16];
        std::memcpy(&pair, p.operands[m] + 4 * k, sizeof pair);
        std::memcpy(weights, p.weights[k], sizeof weights);
        const float first = number(pair << 16), second = number(pair & 0xffff0000u);
        for (int n = 0; n < 16; ++n) {
          even[n] = flushed(std::fma(first, number(weights[n] << 16), even[n]));
          odd[n] = flushed(std::fma(second, number(weights[n] & 0xffff0000u), odd[n]));
        }
      }
      std::memcpy(sums, p.sums[m], sizeof sums);
      for (int n = 0; n < 16; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
      if (spoiled_) sums[3] *= 1.001f;
      std::memcpy(p.sums[m], sums, p.sum_bytes);
    }
  }

  /// True if the calling thread has shapes that it did not release.
  static bool configured() { return own().configured; }
  /// How often the calling thread configured shapes.
  static int configurations() { return own().configurations; }
  static void spoil(bool wrong) { spoiled_ = wrong; }

 private:
  struct State {
    bool configured = false;
    int configurations = 0;
    TileShapes shapes;
    alignas(64) std::byte data[kRegisters][kRows][kRowBytes];
  };
  struct Product {
    std::byte (*sums)[kRowBytes];
    const std::byte (*operands)[kRowBytes];
    const std::byte (*weights)[kRowBytes];
    int rows, steps;
    std::size_t sum_bytes;
  };

  static inline std::atomic<bool> spoiled_ = false;

  static State& own() {
    static thread_local State state;
    return state;
  }
  static std::byte (*used(int t))[kRowBytes] {
    TROUPE_CHECK(own().configured && own().shapes.rows[t] > 0);
    return own().data[t];
  }
  static void load(int t, const void* from, std::size_t stride) {
    std::byte(*data)[kRowBytes] = used(t);
    std::memset(data, 0, kRows * kRowBytes);
    for (int r = 0; r < own().shapes.rows[t]; ++r)
      std::memcpy(data[r], static_cast<const std::byte*>(from) + std::size_t(r) * stride,
                  own().shapes.row_bytes[t]);
  }
  static Product product(int half, int side) {
    const TileShapes& shapes = own().shapes;
    const int c = sums_register(half, side), a = operands_register(half), b = weights_register(side);
    const Product p{used(c), used(a), used(b), shapes.rows[c], shapes.row_bytes[a] / 4, shapes.row_bytes[c]};
    TROUPE_CHECK(shapes.rows[a] == p.rows && shapes.rows[b] == p.steps);
    TROUPE_CHECK(shapes.row_bytes[b] == shapes.row_bytes[c] && shapes.row_bytes[a] % 4 == 0);
    return p;
  }
  static float flushed(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    return (bits & 0x7f800000u) == 0 ? __builtin_bit_cast(float, bits & 0x80000000u) : x;
  }
  static float number(std::uint32_t bits) { return flushed(__builtin_bit_cast(float, bits)); }
};

}  // namespace troupe::kernels
