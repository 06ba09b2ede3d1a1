#pragma once
// The kernel of a product of many rows on Hopper.
//
// It is persistent: one block of three warpgroups per multiprocessor. The first fetches tiles of x and of the
// weight into a ring of slots in shared memory (the copy engine; rows that an index names by cp.async, in the
// same swizzle). The other two multiply: a tile of 128 rows is cut between them by rows, one of 64 rows by
// columns. While they turn their sums into results the ring fills for the next tile.
//
// A product with too few tiles for all multiprocessors is cut along k too: the blocks of a cluster each sum a
// part of the inputs for the same tile, then each takes a share of its columns, adds up the parts in the
// order of the blocks and ends it.
//
// Every sum, or part of one, runs over k in rising order in one thread's register whatever the shape of the
// tile.
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
  int steps = 0;       // of 64 inputs
  int row_chunks = 0;  // 16-byte pieces of a row of x
  const void* x = nullptr;
  WgmmaEndingArgs finish{};
};

/// kSplit: blocks that share a tile.
template <int kTileRows, int kTileColumns, int kSplitBlocks = 1>
struct TileShape {
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kSplit = kSplitBlocks;
  static constexpr int kWarpgroupColumns = kRows == 128 ? kColumns : kColumns / 2;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kSlotBytes = kXBytes + kWeightBytes;
  static constexpr int kSlots = std::min(8, (kMostShared - 2048) / kSlotBytes);
  static constexpr int kSharedBytes = kSlots * kSlotBytes + 1024;
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
    ptx::bulk_copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kWgmmaStepInputs, tile.column,
                       tile.group);
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

/// A warpgroup: eight neighbouring threads fetch a row's 128 bytes.
template <class Shape>
__device__ __forceinline__ void fetch_gathered(const Product& product, const WgmmaShared<Shape>& shared,
                                               const CUtensorMap* weight_map) {
  constexpr int kRowsAtOnce = 128 / 8;
  constexpr int kTurns = Shape::kRows / kRowsAtOnce;
  wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const auto* x = static_cast<const uint4*>(product.x);
  const std::uint32_t to = row * kRowBytes + (chunk ^ (row % 8)) * 16;
  Ring<Shape::kSlots> ring, landed;
  int flying = 0;  // steps in flight; `landed` is at the oldest
  const auto land = [&] {
    if (flying == 3) {
      ptx::copy_async_wait<2>();
    } else if (flying == 2) {
      ptx::copy_async_wait<1>();
    } else {
      ptx::copy_async_wait<0>();
    }
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(&shared.full[landed.slot]);
    landed.next();
    --flying;
  };
  for (ProductTile tile; walk.next(tile);) {
    std::uint32_t from[kTurns];
    const int here =
        (tile.end - tile.row - row + kRowsAtOnce - 1) / kRowsAtOnce;  // of my rows; the rest gets zeros
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int p = min(tile.row + row + i * kRowsAtOnce, tile.end - 1);
      from[i] = static_cast<std::uint32_t>(__ldcg(product.gather + p)) *
                    static_cast<std::uint32_t>(product.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      while (flying > 0 && !ptx::mbarrier_test_wait(&shared.empty[slot], ring.parity ^ 1)) land();
      ptx::mbarrier_wait(&shared.empty[slot], ring.parity ^ 1);
      if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect(&shared.full[slot], Shape::kWeightBytes);
        ptx::bulk_copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kWgmmaStepInputs,
                           tile.column, tile.group);
      }
      const int turns = step * 8 + chunk < product.row_chunks ? here : 0;
      const std::uint32_t base = ptx::shared_address(shared.x(slot)) + to;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        ptx::copy_async_16_or_zero(base + i * kRowsAtOnce * kRowBytes,
                                   x + (i < turns ? from[i] + step * 8 : from[i]), i < turns);
      }
      ptx::copy_async_commit();
      if (++flying == 3) land();
    }
  }
  while (flying > 0) land();
}

template <class Shape>
__device__ __forceinline__ void release(const WgmmaShared<Shape>& shared, int slot) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&shared.empty[slot]);
}

/// Stores this thread's sums where the cluster's blocks read them: over the ring, which is empty then.
template <class Shape, int kSums>
__device__ __forceinline__ void leave_sums(const WgmmaShared<Shape>& shared, const float (&d)[kSums]) {
  auto* to = reinterpret_cast<float4*>(shared.slots) + (threadIdx.x - 128);
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    to[i * 256] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  }
}

/// This block's share of the columns, summed up over the blocks of the cluster.
template <class Shape, int kSums>
__device__ __forceinline__ void gather_sums(const WgmmaShared<Shape>& shared, float (&d)[kSums]) {
  const int rank = static_cast<int>(ptx::cluster_rank());
  const std::uint32_t from =
      ptx::shared_address(shared.slots) + ((rank * (kSums / 4)) * 256 + threadIdx.x - 128) * 16;
#pragma unroll
  for (int block = 0; block < Shape::kSplit; ++block) {
    const std::uint32_t there = ptx::peer_address(from, block);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float4 part = ptx::load_peer_float4(there + i * 256 * 16);
      d[4 * i] = block == 0 ? part.x : d[4 * i] + part.x;
      d[4 * i + 1] = block == 0 ? part.y : d[4 * i + 1] + part.y;
      d[4 * i + 2] = block == 0 ? part.z : d[4 * i + 2] + part.z;
      d[4 * i + 3] = block == 0 ? part.w : d[4 * i + 3] + part.w;
    }
  }
}

template <class T, class Shape>
__device__ __forceinline__ void multiply(const Product& product, const WgmmaShared<Shape>& shared) {
  constexpr int kN = Shape::kWarpgroupColumns;
  constexpr bool kByRows = Shape::kRows == 128;
  const int warpgroup = threadIdx.x / 128 - 1;
  const int first_row = kByRows ? warpgroup * 64 : 0;
  const int row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int column = kByRows ? 0 : warpgroup * kN;
  const std::uint32_t x = ptx::shared_address(shared.x(0)) + first_row * kRowBytes;
  const std::uint32_t weight = ptx::shared_address(shared.weight(0)) + column * kRowBytes;
  wait_for_previous();
  let_next_start();  // not earlier in a grouped product: it holds the next kernel (Groups::settled)
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  float d[kN / 2];
  bool any = false;
  for (ProductTile tile; walk.next(tile); any = true) {
    if (Shape::kSplit == 1 && tile.row + first_row >= tile.end) {  // no row of mine
      for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
        ptx::mbarrier_wait(&shared.full[ring.slot], ring.parity);
        release(shared, ring.slot);
      }
      continue;
    }
    int previous = 0;
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      ptx::mbarrier_wait(&shared.full[slot], ring.parity);
      const std::uint64_t a = ptx::swizzled_operand(x + slot * Shape::kSlotBytes);
      const std::uint64_t b = ptx::swizzled_operand(weight + slot * Shape::kSlotBytes);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kWgmmaStepInputs / 16; ++k) {
        ptx::wgmma<T, kN>(d, ptx::advanced(a, 32 * k), ptx::advanced(b, 32 * k), step > steps.begin || k > 0);
      }
      ptx::wgmma_commit();
      if (step > steps.begin) {
        ptx::wgmma_wait<1>();
        release(shared, previous);
      }
      previous = slot;
    }
    ptx::wgmma_wait<0>();
    release(shared, previous);
    if constexpr (Shape::kSplit == 1) {
      finish(product.finish, Sums<T, kN>{d, tile.row + row, tile.end, tile.column + column});
    } else {
      constexpr int kShare = kN / Shape::kSplit;
      // Both warpgroups are through with the ring before it becomes a place for sums.
      ptx::barrier_sync<2, 256>();
      leave_sums(shared, d);
      ptx::cluster_sync();
      float share[kShare / 2];
      gather_sums(shared, share);
      finish(product.finish,
             Sums<T, kShare>{share, tile.row + row, tile.end,
                             tile.column + column + static_cast<int>(ptx::cluster_rank()) * kShare});
    }
  }
  if (Shape::kSplit > 1 && !any)
    ptx::cluster_sync();  // no tile for this cluster: the fetching warps count on it
}

template <class T, class Shape>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                   const __grid_constant__ Product product) {
  extern __shared__ std::byte dynamic[];
  __shared__ ptx::Barrier full[Shape::kSlots], empty[Shape::kSlots];
  const WgmmaShared<Shape> shared{dynamic + (1024 - ptx::shared_address(dynamic) % 1024) % 1024, full, empty};
  const bool gathered = product.gather != nullptr;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x_map);
    ptx::prefetch_tensor_map(&weight_map);
    for (int i = 0; i < Shape::kSlots; ++i) {
      ptx::mbarrier_init(&full[i], gathered ? 1 + 128 : 1);
      ptx::mbarrier_init(&empty[i], 8);  // a warp of each
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (product.offsets == nullptr) let_next_start();
  if (threadIdx.x < 128) {
    ptx::lower_registers<40>();
    if (gathered) {
      fetch_gathered<Shape>(product, shared, &weight_map);
    } else if (threadIdx.x == 0) {
      fetch_boxes<Shape>(product, shared, &x_map, &weight_map);
    } else {
      wait_for_previous();
    }
    __syncwarp();
    if constexpr (Shape::kSplit > 1) ptx::cluster_sync();  // the sums are there
  } else {
    ptx::raise_registers<232>();
    multiply<T, Shape>(product, shared);
  }
  if constexpr (Shape::kSplit > 1) ptx::cluster_sync();  // no block leaves while another reads from it
}

}  // namespace troupe::kernels::cuda
