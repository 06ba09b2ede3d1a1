#pragma once
// Random weights generated on the device, for models without a checkpoint (dummy weights).
#include <array>
#include <cstdint>

#include "gpu/device.h"
#include "kernels/pack.h"
#include "kernels/wint2.h"

namespace troupe::kernels {

/// Sets element (o, i) of `into` to a draw from N(0, deviation) that depends only on (seed, o, i): not on the
/// layout, the device or the dtype, and not on what part of a larger matrix `into` is. A draw is one of 4096
/// quantiles, rounded to bf16, so that a model has the same weights in f32 and bf16.
/// tools/generate/make_tuned_goldens.py draws the same numbers. Into wint2, whose codes no rounding makes,
/// bytes and scales are drawn instead, for weights of the same deviation.
struct FillRandom {
  Matrix into{};
  Place place = Place::rows;  ///< as for Pack
  int first = 0;              ///< as for Pack
  int outputs = 0;            ///< rows to fill; o counts from first_output within them
  std::uint64_t seed = 0;
  float deviation = 0.02f;
  int first_output = 0;  ///< o of the first row
  RowPart part{};        ///< part.first: i of the first column, on Cuda a multiple of kDrawsPerHash
};

inline constexpr int kQuantiles = 4096;
inline constexpr int kDrawsPerHash = 4;

/// Quantiles of the normal distribution: the medians of 4096 equally probable slices, scaled to a standard
/// deviation of exactly 1.
const std::array<float, kQuantiles>& normal_quantiles();

/// Four draws, 16 bits each from the lowest, of inputs 4 * group … 4 * group + 3: a draw is the quantile of
/// its bits modulo 4096. The finaliser of splitmix64.
constexpr std::uint64_t draw_bits(std::uint64_t seed, std::uint32_t output, std::uint32_t group) {
  std::uint64_t z = seed + (std::uint64_t{output} << 32 | group) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/// wint2: 8 bytes of one hash, from the lowest, are those of inputs that begin with `input`.
inline constexpr int kWint2DrawnInputs = 8 * kWint2Inputs;
constexpr std::uint32_t wint2_draw(int input) {
  return static_cast<std::uint32_t>(input / kWint2DrawnInputs);
}
/// The byte of scales, 8 … 15 each, of the unit-th kWint2Unit inputs.
constexpr std::uint8_t drawn_wint2_scales(std::uint64_t seed, std::uint32_t output, int unit) {
  constexpr std::uint64_t kScaleSeed = 0x5ca1e5;
  return static_cast<std::uint8_t>(draw_bits(seed ^ kScaleSeed, output, static_cast<std::uint32_t>(unit)) |
                                   0x88);
}
/// Of every output. The low bits of its words vary from byte to byte.
struct Wint2DrawnLine {
  float scale, zp;
};
inline constexpr Wint2DrawnLine kWint2DrawnLine{113.77f, 1000};
/// Of every output: for weights of that deviation.
inline float drawn_wint2_super_scale(float deviation) {
  constexpr float kCodeDeviation = 18.47f, kScaleDeviation = 11.7f;  // of even 64 codes; rms of 8 … 15
  return bf16_to_float(float_to_bf16(deviation / (kCodeDeviation * kScaleDeviation)));
}

void run(Cpu& device, const FillRandom& op);
void run(Cuda& device, const FillRandom& op);

}  // namespace troupe::kernels
