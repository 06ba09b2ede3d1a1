#pragma once
// How the ring of a product of many rows is filled: the first warpgroup's work. See wgmma_product.cuh.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/codes.cuh"
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
constexpr int kMostCodes = 64 * 1024;  ///< of it for codes

struct Product {
  const std::int32_t* offsets = nullptr;
  const std::int32_t* gather = nullptr;
  int groups = 1;
  int rows = 0;
  int steps = 0;       // of 64 inputs
  int row_chunks = 0;  // 16-byte pieces of a row of x
  const void* x = nullptr;
  const char* weight = nullptr;   // codes: for their scales
  std::size_t weight_stride = 0;  // bytes from a group's weight to the next
  std::size_t scales_at = 0;      // bytes from a group's weight to its scales
  int scale_group = 0;            // inputs that share a scale; 0: none do
  WgmmaEndingArgs finish{};

  __device__ __forceinline__ const char* scales(int group) const {
    return weight + static_cast<std::size_t>(group) * weight_stride + scales_at;
  }
};

/// kSplit: blocks that share a tile.
template <int kTileRows, int kTileColumns, int kSplitBlocks = 1, class Codes_ = PlainCodes>
struct TileShape {
  using Codes = Codes_;
  static constexpr bool kExpands = Codes::kOperands > 1;
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kSplit = kSplitBlocks;
  static constexpr int kWarpgroupColumns = kRows == 128 ? kColumns : kColumns / 2;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kSlotBytes = kXBytes + kWeightBytes;
  // Boxes of codes: 128 bytes of a row, for kCodeSteps steps.
  static constexpr int kCodeSteps = Codes::kOperands;
  static constexpr int kCodeBytes = kColumns * kRowBytes;
  static constexpr int kCodeSlots = kExpands ? std::min(4, kMostCodes / kCodeBytes) : 0;
  static constexpr int kSlots = std::min(8, (kMostShared - 2048 - kCodeSlots * kCodeBytes) / kSlotBytes);
  static constexpr int kSharedBytes = kSlots * kSlotBytes + kCodeSlots * kCodeBytes + 1024;
  static_assert(kSplit == 1 || kSlots * kSlotBytes >= kRows * kColumns * 4);
  using Walk = TileWalk<kRows, kColumns>;
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
  ptx::Barrier* codes_full;
  __device__ std::byte* codes(int slot) const {
    return slots + Shape::kSlots * Shape::kSlotBytes + slot * Shape::kCodeBytes;
  }
  __device__ std::byte* x(int slot) const { return slots + slot * Shape::kSlotBytes; }
  __device__ std::byte* weight(int slot) const { return x(slot) + Shape::kXBytes; }
};

template <class Shape>
__device__ __forceinline__ typename Shape::Walk walk_of(const Product& product) {
  return {product.offsets,
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

/// One thread. Weights are constants: a dense product's first ones are fetched while the previous kernel
/// still runs.
template <class Shape>
__device__ __forceinline__ void fetch_boxes(const Product& product, const WgmmaShared<Shape>& shared,
                                            const CUtensorMap* x_map, const CUtensorMap* weight_map) {
  const bool early = product.offsets == nullptr;
  if (!early) wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  ProductTile tile;
  if (!walk.next(tile)) return wait_for_previous();
  const auto fetch_weight = [&](int slot, int step) {
    ptx::mbarrier_arrive_expect(&shared.full[slot], Shape::kSlotBytes);
    ptx::bulk_copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kWgmmaStepInputs,
                       tile.column, tile.group);
  };
  int ahead = 0;  // slots whose weights are in flight and whose x is not requested yet
  if (early) {
    for (; ahead < min(Shape::kSlots, steps.end - steps.begin); ++ahead)
      fetch_weight(ahead, steps.begin + ahead);
    wait_for_previous();
  }
  do {
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      if (ahead == 0) {
        ptx::mbarrier_wait(&shared.empty[slot], ring.parity ^ 1);
        fetch_weight(slot, step);
      } else {
        --ahead;
      }
      ptx::bulk_copy_box(shared.x(slot), x_map, &shared.full[slot], step * kWgmmaStepInputs, tile.row, 0);
    }
  } while (walk.next(tile));
}

/// Rows of x that an index names, fetched by a warpgroup: eight neighbouring threads take a row's 128 bytes.
template <class Shape>
struct GatheredRows {
  static constexpr int kRowsAtOnce = 128 / 8;
  static constexpr int kTurns = Shape::kRows / kRowsAtOnce;

  const Product& product;
  const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
  const std::uint32_t to = static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
  int here = 0;  ///< of my rows; the rest gets zeros
  std::uint32_t from[kTurns];

  __device__ __forceinline__ void enter(const ProductTile& tile) {
    here = (tile.end - tile.row - row + kRowsAtOnce - 1) / kRowsAtOnce;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int p = min(tile.row + row + i * kRowsAtOnce, tile.end - 1);
      from[i] = static_cast<std::uint32_t>(__ldcg(product.gather + p)) *
                    static_cast<std::uint32_t>(product.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
  }
  /// Requests a step's part of the rows, as one group of copies.
  __device__ __forceinline__ void fetch(const std::byte* slot, int step) const {
    const auto* x = static_cast<const uint4*>(product.x);
    const int turns = step * 8 + chunk < product.row_chunks ? here : 0;
    const std::uint32_t base = ptx::shared_address(slot) + to;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
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

/// Steps whose rows of x are in flight, at most three; a slot is full when its copies have landed.
template <class Shape>
struct FlyingSteps {
  const WgmmaShared<Shape>& shared;
  Ring<Shape::kSlots> oldest{};
  int count = 0;

  __device__ __forceinline__ void land() {
    if (count == 3) {
      ptx::copy_async_wait<2>();
    } else if (count == 2) {
      ptx::copy_async_wait<1>();
    } else {
      ptx::copy_async_wait<0>();
    }
    arrive_after_writes(&shared.full[oldest.slot]);
    oldest.next();
    --count;
  }
  /// Until the slot that comes next is empty.
  __device__ __forceinline__ void land_while_full(int slot, std::uint32_t parity) {
    while (count > 0 && !ptx::mbarrier_test_wait(&shared.empty[slot], parity)) land();
    ptx::mbarrier_wait(&shared.empty[slot], parity);
  }
};

/// A warpgroup.
template <class Shape>
__device__ __forceinline__ void fetch_gathered(const Product& product, const WgmmaShared<Shape>& shared,
                                               const CUtensorMap* weight_map) {
  wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  GatheredRows<Shape> rows{product};
  FlyingSteps<Shape> flying{shared};
  Ring<Shape::kSlots> ring;
  for (ProductTile tile; walk.next(tile);) {
    rows.enter(tile);
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      flying.land_while_full(slot, ring.parity ^ 1);
      if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(&shared.full[slot], Shape::kWeightBytes);
        ptx::bulk_copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kWgmmaStepInputs,
                           tile.column, tile.group);
      }
      rows.fetch(shared.x(slot), step);
      if (++flying.count == 3) flying.land();
    }
  }
  while (flying.count > 0) flying.land();
}

/// One thread: requests boxes of codes in the order in which steps take them, into slots one after the other.
template <class Shape>
struct CodeBoxes {
  const WgmmaShared<Shape>& shared;
  const CUtensorMap* const map;
  const Steps steps;
  typename Shape::Walk walk;
  ProductTile tile{};
  bool any;
  int box = 0, slot = 0;

  __device__ __forceinline__ CodeBoxes(const Product& product, const WgmmaShared<Shape>& shared,
                                       const CUtensorMap* map)
      : shared(shared), map(map), steps(steps_of<Shape>(product)), walk(walk_of<Shape>(product)) {
    any = walk.next(tile);
    box = steps.begin / Shape::kCodeSteps;
  }
  __device__ __forceinline__ void request() {
    if (!any) return;
    ptx::mbarrier_arrive_expect(&shared.codes_full[slot], Shape::kCodeBytes);
    ptx::bulk_copy_box(shared.codes(slot), map, &shared.codes_full[slot], box * kWgmmaStepInputs, tile.column,
                       tile.group);
    if (++slot == Shape::kCodeSlots) slot = 0;
    if (++box * Shape::kCodeSteps < steps.end) return;
    box = steps.begin / Shape::kCodeSteps;
    any = walk.next(tile);
  }
};

/// Expands a step's 64 inputs of the tile's weights. Warp t takes what lane t of mma's four would; a lane has
/// a row at a time, so neither its loads nor its stores collide in shared memory's banks.
template <class Shape>
__device__ __forceinline__ void expand_step(const Product& product, const ProductTile& tile,
                                            ptx::SharedAddress codes, ptx::SharedAddress weight, int step) {
  using Codes = typename Shape::Codes;
  const int lane = static_cast<int>(threadIdx.x) % 32, t = static_cast<int>(threadIdx.x) / 32;
  const int first = step % Shape::kCodeSteps * 2;  // operand, of the box
  const int from = (first / Codes::kOperands * 4 + t) ^ lane % 8, to = t ^ lane % 8;
  constexpr int kAtOnce = 4;  // rows whose codes are loaded before the first is expanded
  static_assert(Shape::kColumns % (32 * kAtOnce) == 0);
#pragma unroll
  for (int first_row = lane; first_row < Shape::kColumns; first_row += 32 * kAtOnce) {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      raw[i] = ptx::load_shared_16(
          codes + static_cast<ptx::SharedAddress>((first_row + 32 * i) * kRowBytes + from * 16));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const ptx::SharedAddress place = weight + static_cast<ptx::SharedAddress>((to ^ half * 4) * 16);
      Bf16 scales[kAtOnce];
      if constexpr (Codes::kGroupScales) {
        const int group = (step * kWgmmaStepInputs + half * 32) / product.scale_group;
        const auto* line =
            reinterpret_cast<const Bf16*>(product.scales(tile.group)) + group * product.finish.columns;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          scales[i] = line[min(tile.column + first_row + 32 * i, product.finish.columns - 1)];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int o = first % Codes::kOperands + half;
        uint4 v;
        if constexpr (Codes::kGroupScales) {
          v = Codes::operand(raw[i], o, scales[i]);
        } else {
          v = Codes::operand(raw[i], o);
        }
        ptx::store_shared_16(place + static_cast<ptx::SharedAddress>((first_row + 32 * i) * kRowBytes), v);
      }
    }
  }
}

/// A warpgroup fills the ring from codes.
template <class Shape>
__device__ __forceinline__ void expand_codes(const Product& product, const WgmmaShared<Shape>& shared,
                                             const CUtensorMap* x_map, const CUtensorMap* weight_map) {
  const bool early = product.offsets == nullptr, gathered = product.gather != nullptr;
  if (!early) wait_for_previous();
  CodeBoxes<Shape> boxes(product, shared, weight_map);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kCodeSlots; ++i) boxes.request();
  }
  if (early) wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  GatheredRows<Shape> rows{product};
  FlyingSteps<Shape> flying{shared};
  Ring<Shape::kSlots> ring;
  Ring<Shape::kCodeSlots> codes;
  for (ProductTile tile; walk.next(tile);) {
    if (gathered) rows.enter(tile);
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      flying.land_while_full(slot, ring.parity ^ 1);
      if (gathered) {
        rows.fetch(shared.x(slot), step);
      } else if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(&shared.full[slot], Shape::kXBytes);
        ptx::bulk_copy_box(shared.x(slot), x_map, &shared.full[slot], step * kWgmmaStepInputs, tile.row, 0);
      }
      ptx::mbarrier_wait(&shared.codes_full[codes.slot], codes.parity);
      expand_step<Shape>(product, tile, ptx::shared_address(shared.codes(codes.slot)),
                         ptx::shared_address(shared.weight(slot)), step);
      if (gathered) {
        if (++flying.count == 3) flying.land();
      } else {
        arrive_after_writes(&shared.full[slot]);
      }
      if ((step + 1) % Shape::kCodeSteps != 0 && step + 1 < steps.end) continue;
      ptx::barrier_sync(3, 128);  // all have read the box
      if (threadIdx.x == 0) boxes.request();
      codes.next();
    }
  }
  while (flying.count > 0) flying.land();
}

}  // namespace troupe::kernels::cuda
