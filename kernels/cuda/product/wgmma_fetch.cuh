#pragma once
// How the ring of a product of many rows is filled: the first warpgroup's work. See wgmma_product.cuh.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/tile_walk.cuh"
#include "kernels/cuda/product/wgmma.h"
#include "kernels/cuda/product/wgmma_endings.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda {

using namespace troupe::cuda;

constexpr int kThreads = 384;
constexpr int kRowBytes = 128;
constexpr int kMostShared = 227 * 1024;

struct Product {
  const std::int32_t* offsets = nullptr;
  const std::int32_t* gather = nullptr;
  int groups = 1;
  int rows = 0;
  int steps = 0;       // of 128 bytes of a row
  int row_chunks = 0;  // 16-byte pieces of a row of x
  const void* x = nullptr;
  const float* x_scales = nullptr;  // (rows of x, steps), with fp8 weights
  // Of group 0: a float for each output, or with fp8 weights (steps, columns / 8). Null: 1.
  const char* scales = nullptr;
  std::size_t scales_stride = 0;  // bytes from a group's scales to the next
  bool constant_weights = true;   // no kernel of the step writes them
  WgmmaEndingArgs finish{};
};

/// kSplit: blocks that share a tile.
template <int kTileRows, int kTileColumns, int kSplitBlocks = 1, WgmmaScales kScaling = WgmmaScales::none>
struct TileShape {
  static constexpr WgmmaScales kScales = kScaling;
  static constexpr bool kFp8 = kScales >= WgmmaScales::blocks;
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kSplit = kSplitBlocks;
  static constexpr int kWarpgroupColumns = kRows == 128 ? kColumns : kColumns / 2;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kSlotBytes = kXBytes + kWeightBytes;
  static constexpr int kScaleBytes =
      kFp8 ? kColumns / kFp8ScaleOutputs * 4 : 0;  ///< of a slot, behind all slots
  static constexpr int kSlots = std::min(8, (kMostShared - 2048) / (kSlotBytes + kScaleBytes));
  static constexpr int kSharedBytes = kSlots * (kSlotBytes + kScaleBytes) + 1024;
  static_assert(kSplit == 1 || kSlots * kSlotBytes >= kRows * kColumns * 4);
  using Walk = TileWalk<kRows, kColumns>;
  static constexpr bool kReadsFewer = false;  ///< the products read all rows of a slot, whatever the tile has
};

/// Position in the ring.
template <int kSlots>
struct Ring {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

template <class Shape>
struct WgmmaShared {
  std::byte* slots;
  ptx::Barrier* full;
  ptx::Barrier* empty;
  __device__ std::byte* x(int slot) const { return slots + slot * Shape::kSlotBytes; }
  __device__ std::byte* weight(int slot) const { return x(slot) + Shape::kXBytes; }
  __device__ const float* scales(int slot) const {
    return reinterpret_cast<const float*>(slots + Shape::kSlots * Shape::kSlotBytes +
                                          slot * Shape::kScaleBytes);
  }
};

template <class Shape>
__device__ __forceinline__ typename Shape::Walk walk_of(const Product& product, const GroupOffsets& offsets) {
  return {offsets,
          product.groups,
          product.rows,
          product.finish.columns,
          static_cast<int>(blockIdx.x) / Shape::kSplit,
          static_cast<int>(gridDim.x) / Shape::kSplit};
}

/// This block's steps along k.
struct Steps {
  int begin, end;
};
template <class Shape>
__device__ __forceinline__ Steps steps_of(const Product& product) {
  if constexpr (Shape::kSplit == 1) {
    return {0, product.steps};
  } else {
    const int rank = static_cast<int>(ptx::cluster_rank());
    return {product.steps * rank / Shape::kSplit, product.steps * (rank + 1) / Shape::kSplit};
  }
}

/// One thread. Requests a step's part of the tile's weights, and of their scales where it has some. Together
/// with `more` bytes they fill the slot.
template <class Shape>
__device__ __forceinline__ void fetch_weight(const Product& product, const WgmmaShared<Shape>& shared,
                                             const CUtensorMap* map, const ProductTile& tile, int slot,
                                             int step, int more) {
  int scale_bytes = 0;
  if constexpr (Shape::kFp8)
    scale_bytes = min(Shape::kColumns, product.finish.columns - tile.column) / kFp8ScaleOutputs * 4;
  ptx::mbarrier_arrive_expect(&shared.full[slot], Shape::kWeightBytes + scale_bytes + more);
  ptx::bulk_copy_box(shared.weight(slot), map, &shared.full[slot], step * kWgmmaStepInputs, tile.column,
                     tile.group);
  if constexpr (Shape::kFp8) {
    const auto* scales = reinterpret_cast<const float*>(
        product.scales + static_cast<std::size_t>(tile.group) * product.scales_stride);
    ptx::bulk_copy(
        shared.scales(slot),
        scales + (static_cast<std::size_t>(step) * product.finish.columns + tile.column) / kFp8ScaleOutputs,
        scale_bytes, &shared.full[slot]);
  }
}

/// One thread. A dense product's first weights are fetched while the previous kernel still runs, if they are
/// constants.
template <class Shape>
__device__ __forceinline__ void fetch_boxes(const Product& product, const WgmmaShared<Shape>& shared,
                                            const CUtensorMap* x_map, const CUtensorMap* weight_map) {
  const bool early = product.offsets == nullptr && product.constant_weights;
  if (!early) wait_for_previous();
  auto walk = walk_of<Shape>(product, GroupOffsets{product.offsets});
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  ProductTile tile;
  if (!walk.next(tile)) return wait_for_previous();
  const auto fetch = [&](int slot, int step) {
    fetch_weight(product, shared, weight_map, tile, slot, step, Shape::kXBytes);
  };
  int ahead = 0;  // slots whose weights are in flight and whose x is not requested yet
  if (early) {
    for (; ahead < min(Shape::kSlots, steps.end - steps.begin); ++ahead) fetch(ahead, steps.begin + ahead);
    wait_for_previous();
  }
  do {
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      if (ahead == 0) {
        ptx::mbarrier_wait(&shared.empty[slot], ring.parity ^ 1);
        fetch(slot, step);
      } else {
        --ahead;
      }
      ptx::bulk_copy_box(shared.x(slot), x_map, &shared.full[slot], step * kWgmmaStepInputs, tile.row, 0);
    }
  } while (walk.next(tile));
}

/// Rows of x, named by an index if there is one, fetched by a warpgroup: eight neighbouring threads take a
/// row's 128 bytes. Source: has x, row_chunks and gather, as Product.
template <class Shape, class Source>
struct RowsOfTile {
  static constexpr int kRowsAtOnce = 128 / 8;
  static constexpr int kTurns = Shape::kRows / kRowsAtOnce;

  const Source& source;
  const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
  const std::uint32_t to = static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
  int here = 0;       ///< of my rows; the rest gets zeros
  int read = kTurns;  ///< of my rows, those that the products read
  std::uint32_t from[kTurns];

  __device__ __forceinline__ void enter(const ProductTile& tile) {
    here = (tile.end - tile.row - row + kRowsAtOnce - 1) / kRowsAtOnce;
    if constexpr (Shape::kReadsFewer) read = Shape::rows_read(tile.end - tile.row) / kRowsAtOnce;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int p = min(tile.row + row + i * kRowsAtOnce, tile.end - 1);
      const int of_x = source.gather != nullptr ? __ldcg(source.gather + p) : p;
      from[i] = static_cast<std::uint32_t>(of_x) * static_cast<std::uint32_t>(source.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
  }
  /// Requests a step's part of the rows, as one group of copies.
  __device__ __forceinline__ void fetch(const std::byte* slot, int step) const {
    const auto* x = static_cast<const uint4*>(source.x);
    const int turns = step * 8 + chunk < source.row_chunks ? here : 0;
    const std::uint32_t base = ptx::shared_address(slot) + to;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (Shape::kReadsFewer && i >= read) break;
      ptx::copy_async_16_or_zero(base + i * kRowsAtOnce * kRowBytes,
                                 x + (i < turns ? from[i] + step * 8 : from[i]), i < turns);
    }
    ptx::copy_async_commit();
  }
};

/// A warp arrives as one, when all that its threads wrote to shared memory is visible to wgmma.
__device__ __forceinline__ void arrive_after_writes(ptx::Barrier* barrier) {
  ptx::fence_proxy_async();
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
}

/// Steps whose rows of x are in flight, fewer than kMost of them once add() returns; a slot is full when its
/// copies have landed.
template <int kSlots, int kMost>
struct FlyingSteps {
  ptx::Barrier* full;  ///< of the ring's slots
  Ring<kSlots> oldest{};
  int count = 0;

  __device__ __forceinline__ void add() {
    if (++count == kMost) land();
  }
  __device__ __forceinline__ void land() {
    wait_for_oldest<kMost - 1>();
    arrive_after_writes(&full[oldest.slot]);
    oldest.next();
    --count;
  }
  __device__ __forceinline__ void land_all() {
    while (count > 0) land();
  }
  /// Until `empty` has that parity.
  __device__ __forceinline__ void land_until(ptx::Barrier* empty, std::uint32_t parity) {
    while (count > 0 && !ptx::mbarrier_test_wait(empty, parity)) land();
    ptx::mbarrier_wait(empty, parity);
  }

 private:
  template <int kYounger>
  __device__ __forceinline__ void wait_for_oldest() const {
    if constexpr (kYounger == 0) {
      ptx::copy_async_wait<0>();
    } else if (count > kYounger) {
      ptx::copy_async_wait<kYounger>();
    } else {
      wait_for_oldest<kYounger - 1>();
    }
  }
};

/// A warpgroup.
template <class Shape>
__device__ __forceinline__ void fetch_gathered(const Product& product, const WgmmaShared<Shape>& shared,
                                               const CUtensorMap* weight_map) {
  wait_for_previous();
  auto walk = walk_of<Shape>(product, GroupOffsets{product.offsets});
  const Steps steps = steps_of<Shape>(product);
  RowsOfTile<Shape, Product> rows{product};
  FlyingSteps<Shape::kSlots, 3> flying{shared.full};
  Ring<Shape::kSlots> ring;
  for (ProductTile tile; walk.next(tile);) {
    rows.enter(tile);
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      flying.land_until(&shared.empty[slot], ring.parity ^ 1);
      if (threadIdx.x == 0) fetch_weight(product, shared, weight_map, tile, slot, step, 0);
      rows.fetch(shared.x(slot), step);
      flying.add();
    }
  }
  flying.land_all();
}

}  // namespace troupe::kernels::cuda
