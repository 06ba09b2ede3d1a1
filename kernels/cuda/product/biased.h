#pragma once
// Products with a bias on Hopper, of many rows: the tiles that are compiled with that ending.
#include <vector>

#include "kernels/cuda/product/compiled.h"
#include "kernels/cuda/product/wgmma.h"

namespace troupe::kernels::cuda {

/// Indices into kWgmmaTiles. float16 has the narrow one alone.
inline constexpr int kBiasedWideTile = 0, kBiasedNarrowTile = kWgmmaF16Tile;
static_assert(kWgmmaTiles[kBiasedWideTile].rows == 128 && kWgmmaTiles[kBiasedWideTile].columns == 256);

/// The cheaper tile.
constexpr int biased_wgmma_plan(const LinearShape& shape, int multiprocessors) {
  const auto cycles = [&](int tile) { return wgmma_cycles(kWgmmaTiles[tile], shape, multiprocessors); };
  return shape.activations() == DType::bf16 && cycles(kBiasedWideTile) <= cycles(kBiasedNarrowTile)
             ? kBiasedWideTile
             : kBiasedNarrowTile;
}

std::vector<CompiledKernel> biased_kernels();

}  // namespace troupe::kernels::cuda
