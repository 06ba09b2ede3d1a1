#pragma once
// How large a product's launch is: plain functions of its shape and its plan, which tests call without a GPU.
// The kernels: kernel_row.cuh.
#include <algorithm>

#include "kernels/cuda/product/slab.h"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/product/strip.h"
#include "kernels/cuda/product/unpacked.h"
#include "kernels/cuda/product/wgmma.h"

namespace troupe::kernels::cuda {

struct LaunchSize {
  int x = 1, y = 1, z = 1;  ///< blocks
  int shared_bytes = 0;     ///< dynamic, of a block; 0: the same in all launches of the kernel
  int cluster = 1;          ///< blocks along x
  int threads = 0;          ///< of a block; 0: the same in all launches of the kernel
};

/// Outputs and rows of a block of the generic way.
inline constexpr int kGenericTile = 64;

/// Upper bound of the tiles of `size` rows that a product has.
constexpr int most_row_tiles(const LinearShape& shape, int size) {
  if (!shape.grouped()) return (shape.rows + size - 1) / size;
  const int partial = std::min(shape.rows, shape.groups);
  return partial + (shape.rows - partial) / size;
}
constexpr int output_tiles(const LinearShape& shape, int size) {
  return (padded(shape.outputs) + size - 1) / size;
}

constexpr LaunchSize generic_size(const LinearShape& shape) {
  return {.x = output_tiles(shape, kGenericTile) * most_row_tiles(shape, kGenericTile)};
}
constexpr LaunchSize launch_size(const StripPlan& plan) {
  return {.x = plan.blocks, .shared_bytes = plan.shared_bytes, .cluster = plan.kernel.cluster};
}
constexpr LaunchSize launch_size(const SlabPlan& plan) {
  return {.x = plan.blocks, .shared_bytes = plan.shared_bytes, .cluster = plan.kernel.cluster};
}
constexpr LaunchSize launch_size(const LinearShape& shape, const StreamPlan& plan) {
  return {.x = plan.cluster,
          .y = most_row_tiles(shape, plan.tile_rows),
          .z = output_tiles(shape, plan.outputs),
          .shared_bytes = plan.shared_bytes,
          .cluster = plan.cluster};
}

/// Of persistent blocks that walk over tiles: one for each multiprocessor, or fewer. A group's last tile may
/// be partly filled, so each has one more than its share.
constexpr int persistent_blocks(const LinearShape& shape, int rows, int columns, int multiprocessors) {
  const int row_tiles = shape.grouped() ? shape.rows / rows + shape.groups : (shape.rows + rows - 1) / rows;
  const long long tiles = static_cast<long long>(row_tiles) * output_tiles(shape, columns);
  return static_cast<int>(std::min<long long>(tiles, multiprocessors));
}
/// A cluster for each tile if there are any.
constexpr LaunchSize wgmma_size(const LinearShape& shape, const WgmmaTile& tile, int multiprocessors) {
  constexpr int kAll = 1 << 30;
  const int blocks =
      persistent_blocks(shape, tile.rows, tile.columns, tile.cluster > 1 ? kAll : multiprocessors);
  return {.x = blocks * tile.cluster, .cluster = tile.cluster};
}
constexpr LaunchSize unpacked_size(const LinearShape& shape, int multiprocessors) {
  return {.x = persistent_blocks(shape, kUnpackedRows, kUnpackedOutputs, multiprocessors)};
}

}  // namespace troupe::kernels::cuda
