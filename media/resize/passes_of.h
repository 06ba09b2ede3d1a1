#pragma once
// The loops for vectors of LANES 32-bit integers; included by passes_X.cpp alone, each compiled for its own
// instruction set. Everything has internal linkage and nothing of the standard library is called: a function
// left out of line could be taken by the linker for other units' copy of it.
#include "media/resize/passes.h"

namespace troupe::media {
namespace {

template <int Lanes>
struct Vector {
  typedef std::int32_t Ints __attribute__((vector_size(4 * Lanes)));
  typedef std::uint8_t Bytes __attribute__((vector_size(Lanes)));
};
using Ints16 = Vector<16>::Ints;
using Ints8 = Vector<8>::Ints;
using Ints4 = Vector<4>::Ints;

template <class T>
inline T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void store(void* to, const T& value) {
  __builtin_memcpy(to, &value, sizeof value);
}

/// Sums the groups of four lanes.
inline Ints4 sum_of_fours(const Ints4& v) { return v; }
inline Ints4 sum_of_fours(const Ints8& v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
inline Ints4 sum_of_fours(const Ints16& v) {
  return sum_of_fours(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// From sums with kWeightBits bits of fraction to bytes: rounded, then clamped.
template <class Bytes, class Ints>
inline Bytes to_bytes(Ints sum) {
  sum = (sum + (1 << (kWeightBits - 1))) >> kWeightBits;
  sum = sum < 0 ? Ints{} : sum;
  sum = sum > 255 ? Ints{} + 255 : sum;
  return __builtin_convertvector(sum, Bytes);
}

template <int Lanes>
void horizontal(const std::uint8_t* const* sources, const AxisWeights::Window* windows, const std::int32_t* weights,
                int stride, int to, std::int32_t* scratch, std::uint8_t* const* outputs) {
  using Ints = typename Vector<Lanes>::Ints;
  using Bytes = typename Vector<Lanes>::Bytes;
  constexpr int kTaps = Lanes / 4;  // pixels in a vector
  for (int x = 0; x < to; ++x, weights += stride) {
    const int groups = (windows[x].count + kTaps - 1) / kTaps;
    const std::size_t offset = static_cast<std::size_t>(windows[x].first) * 4;
    for (int i = 0; i < groups * kTaps; ++i) store(scratch + 4 * i, Ints4{} + weights[i]);
    Ints sums[kRowsAtOnce] = {};
    for (int group = 0; group < groups; ++group) {
      const auto weight = load<Ints>(scratch + group * Lanes);
      for (int row = 0; row < kRowsAtOnce; ++row)
        sums[row] += __builtin_convertvector(load<Bytes>(sources[row] + offset + static_cast<std::size_t>(group) * Lanes),
                                             Ints) *
                     weight;
    }
    for (int row = 0; row < kRowsAtOnce; ++row)
      store(outputs[row] + static_cast<std::size_t>(x) * 4,
            to_bytes<Vector<4>::Bytes>(sum_of_fours(sums[row])));
  }
}

template <int Lanes>
void split(const std::uint8_t* pixels, int width, std::uint8_t* planes, std::size_t pitch) {
  using Ints = typename Vector<Lanes>::Ints;
  using Bytes = typename Vector<Lanes>::Bytes;
  for (int x = 0; x < width; x += Lanes) {
    const auto pixel = load<Ints>(pixels + static_cast<std::size_t>(x) * 4);  // little-endian: red lowest
    store(planes + x, __builtin_convertvector(pixel, Bytes));
    store(planes + pitch + x, __builtin_convertvector(pixel >> 8, Bytes));
    store(planes + 2 * pitch + x, __builtin_convertvector(pixel >> 16, Bytes));
  }
}

template <int Lanes>
void vertical(const std::uint8_t* const* rows, const std::int32_t* weights, int count, std::size_t bytes,
              std::uint8_t* output) {
  using Ints = typename Vector<Lanes>::Ints;
  using Bytes = typename Vector<Lanes>::Bytes;
  constexpr int kVectors = 4;
  for (std::size_t x = 0; x < bytes; x += kVectors * Lanes) {
    Ints sums[kVectors] = {};
    for (int i = 0; i < count; ++i) {
      const std::uint8_t* row = rows[i] + x;
      for (int v = 0; v < kVectors; ++v)
        sums[v] += __builtin_convertvector(load<Bytes>(row + v * Lanes), Ints) * weights[i];
    }
    for (int v = 0; v < kVectors; ++v) store(output + x + v * Lanes, to_bytes<Bytes>(sums[v]));
  }
}

template <int Lanes>
constexpr Passes passes_of(const char* name) {
  return {name, horizontal<Lanes>, split<Lanes>, vertical<Lanes>};
}

}  // namespace
}  // namespace troupe::media
