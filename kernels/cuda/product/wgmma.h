#pragma once
// Products of many rows on Hopper: which shape of tiles. The kernel: wgmma_product.cuh.
#include <iterator>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"

namespace troupe::kernels::cuda {

/// A step of the product is a swizzled row of 128 bytes: so many inputs of 16 bits, or a block of fp8.
inline constexpr int kWgmmaStepInputs = 64;
constexpr int wgmma_steps(const WeightFormat& format, int inputs) {
  const int step = format.fp8() ? kFp8Block : kWgmmaStepInputs;
  return (padded(inputs) + step - 1) / step;
}

/// 16-bit types, and fp8 weights beside bf16; of qkv, whole swizzled halves of heads.
constexpr bool wgmma_takes(const LinearShape& shape, const GpuTraits& gpu) {
  const bool types =
      shape.format.fp8() ? shape.activations() == DType::bf16 : shape.activations() != DType::f32;
  return gpu.features.wgmma && types &&
         (shape.ending != Ending::qkv || (shape.head_dim % 64 == 0 && shape.kv == shape.activations()));
}

/// What a tile costs, in cycles: fitted to measurements of all shapes of the models at 128 … 8192 rows on an
/// H200; those of fp8 are estimates. Only ratios matter.
struct WgmmaTile {
  int rows, columns;
  int cluster;  ///< blocks that share a tile's inputs
  int step_cycles;
  bool scaled = false;  ///< compiled for weights whose outputs have scales too
  bool fp8 = false;     ///< for fp8 weights, and those alone
};
inline constexpr WgmmaTile kWgmmaTiles[] = {{128, 256, 1, 1100, true},
                                            {128, 192, 1, 850},
                                            {128, 160, 1, 720},
                                            {128, 128, 1, 610, true},
                                            {64, 256, 1, 770},
                                            {64, 128, 1, 390, true},
                                            {128, 128, 2, 610},
                                            {128, 128, 4, 610},
                                            {64, 128, 2, 390},
                                            {128, 128, 1, 680, false, true},
                                            {64, 256, 1, 700, false, true},
                                            {64, 128, 1, 400, false, true},
                                            {128, 128, 2, 680, false, true},
                                            {128, 128, 4, 680, false, true},
                                            {64, 128, 2, 400, false, true}};
/// What is multiplied by the scales of weights.
enum class WgmmaScales {
  none,
  outputs,  ///< the sums
  blocks,   ///< fp8: what each step adds to them, by the scales of x too
  pairs,    ///< the same where 128 columns have two scales: one the even eights, one the odd ones
};
/// Of the weights of a shape. fp8: in pairs where blocks of 128 outputs begin at multiples of 128, of gate|up
/// one for the gates and one for the ups.
constexpr WgmmaScales wgmma_scales(const LinearShape& shape) {
  if (shape.format.scales_outputs()) return WgmmaScales::outputs;
  if (!shape.format.fp8()) return WgmmaScales::none;
  const bool pairs = shape.ending == Ending::qkv      ? shape.head_dim % kFp8Block == 0
                     : shape.ending == Ending::swiglu ? shape.outputs / 2 % kFp8Block == 0
                                                      : true;
  return pairs ? WgmmaScales::pairs : WgmmaScales::blocks;
}
/// True if the tile is compiled for weights with these scales. No documented model takes fp8 in blocks whose
/// inputs are shared.
constexpr bool is_compiled(const WgmmaTile& tile, WgmmaScales scales) {
  if (scales >= WgmmaScales::blocks) return tile.fp8 && (tile.cluster == 1 || scales == WgmmaScales::pairs);
  return !tile.fp8 && (tile.scaled || scales == WgmmaScales::none);
}
/// The only one that is compiled for float16.
inline constexpr int kWgmmaF16Tile = 3;
static_assert(kWgmmaTiles[kWgmmaF16Tile].rows == 128 && kWgmmaTiles[kWgmmaF16Tile].columns == 128 &&
              kWgmmaTiles[kWgmmaF16Tile].cluster == 1);

/// Cycles of the whole product with this tile; below 0: the tile cannot do it.
constexpr double wgmma_cycles(const WgmmaTile& tile, const LinearShape& shape, int multiprocessors) {
  constexpr double kEnding = 4500, kAddEnding = 6000;  // of a 128 × 256 tile
  constexpr double kCluster2 = 2400, kCluster4 = 4100;
  const int steps = wgmma_steps(shape.format, shape.inputs);
  const int share = (tile.rows == 128 ? tile.columns : tile.columns / 2) / tile.cluster;
  if (shape.ending == Ending::swiglu && share % 64 != 0) return -1;  // gate and its up value in one thread
  if (tile.cluster > 1 && (shape.grouped() || steps < 4 * tile.cluster)) return -1;

  const int columns = (padded(shape.outputs) + tile.columns - 1) / tile.columns;
  const double ending = (shape.ending == Ending::add ? kAddEnding : kEnding) * (tile.rows * tile.columns) /
                        (128 * 256 * tile.cluster);
  const double cycles = static_cast<double>(steps) / tile.cluster * tile.step_cycles + ending;
  if (shape.grouped()) {  // rows of each group are not known here; its last tile is half full on average
    const double rows = static_cast<double>(shape.rows) / shape.groups / tile.rows;
    const double tiles = shape.groups * (rows + 0.5 > 1.0 ? rows + 0.5 : 1.0) * columns / multiprocessors;
    return (tiles > 1.0 ? tiles : 1.0) * cycles;
  }
  const int blocks = (shape.rows + tile.rows - 1) / tile.rows * columns * tile.cluster;
  // Clusters of four leave some multiprocessors of a partition unused.
  const int room = tile.cluster == 4 ? multiprocessors * 10 / 11 : multiprocessors;
  if (tile.cluster > 1 && blocks > room) return -1;
  const int waves = (blocks + room - 1) / room;
  return waves * cycles + (tile.cluster == 2 ? kCluster2 : tile.cluster == 4 ? kCluster4 : 0);
}

/// Index into kWgmmaTiles of the cheapest tile.
constexpr int wgmma_plan(const LinearShape& shape, const GpuTraits& gpu) {
  if (shape.activations() == DType::f16) return kWgmmaF16Tile;
  int best = -1;
  double least = 0;
  for (int i = 0; i < static_cast<int>(std::size(kWgmmaTiles)); ++i) {
    if (!is_compiled(kWgmmaTiles[i], wgmma_scales(shape))) continue;
    const double cycles = wgmma_cycles(kWgmmaTiles[i], shape, gpu.multiprocessors);
    if (cycles < 0 || (best >= 0 && cycles >= least)) continue;
    best = i;
    least = cycles;
  }
  return best;
}

}  // namespace troupe::kernels::cuda
