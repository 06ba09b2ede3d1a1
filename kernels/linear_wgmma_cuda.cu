// Matrix products of many rows on Hopper.
//
// A persistent kernel, one block of three warpgroups per multiprocessor. The first fetches tiles of x and of
// the weight into a ring of slots in shared memory (the copy engine; rows that an index names by cp.async, in
// the same swizzle). The other two multiply: a tile of 128 rows is cut between them by rows, one of 64 rows
// by columns. While one of them turns its sums into results the other still multiplies, and the ring already
// fills for the next tile; the second is held back by a slot at the very start, so that they never end a tile
// together.
//
// Blocks of a cluster take row tiles below each other and the same columns: each fetches its share of the
// weight tile and sends it to all.
//
// Every sum runs over k in rising order in one thread's register whatever the shape of the tile, so a row's
// bits do not depend on the other rows.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/tile_walk.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wgmma_endings.cuh"

namespace troupe::kernels::cuda {

using namespace troupe::cuda;

int wgmma_variant = -1;
int wgmma_stagger = 1;

namespace {

constexpr int kThreads = 384;
constexpr int kStepInputs = 64;  // of k per slot: a swizzled row of 128 bytes
constexpr int kRowBytes = 128;
constexpr int kMostShared = 227 * 1024;

struct Product {
  const std::int32_t* offsets = nullptr;
  const std::int32_t* gather = nullptr;
  int groups = 1;
  int rows = 0;
  int steps = 0;       // of 64 inputs
  int row_chunks = 0;  // 16-byte pieces of a row of x
  int stagger = 1;
  const void* x = nullptr;
  Finish finish{};
};

template <int kTileRows, int kTileColumns, int kClusterBlocks>
struct TileShape {
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kCluster = kClusterBlocks;
  static constexpr int kWarpgroupColumns = kRows == 128 ? kColumns : kColumns / 2;
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kWeightBytes = kColumns * kRowBytes;
  static constexpr int kSlotBytes = kXBytes + kWeightBytes;
  static constexpr int kSlots = std::min(8, (kMostShared - 2048) / kSlotBytes);
  static constexpr int kSharedBytes = kSlots * kSlotBytes + 1024;
  using Walk = TileWalk<kRows * kCluster, kColumns>;
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
struct Shared {
  std::byte* slots;
  Barrier* full;
  Barrier* empty;
  __device__ std::byte* x(int slot) const { return slots + slot * Shape::kSlotBytes; }
  __device__ std::byte* weight(int slot) const { return x(slot) + Shape::kXBytes; }
};

template <class Shape>
__device__ __forceinline__ void fetch_weight(const Shared<Shape>& shared, int slot, const CUtensorMap* map,
                                             const Tile& tile, int step, int rank) {
  if constexpr (Shape::kCluster == 1) {
    copy_box(shared.weight(slot), map, &shared.full[slot], step * kStepInputs, tile.column, tile.group);
  } else {
    constexpr int kShare = Shape::kColumns / Shape::kCluster;
    copy_box_to((1u << Shape::kCluster) - 1, shared.weight(slot) + rank * kShare * kRowBytes, map,
                &shared.full[slot], step * kStepInputs, tile.column + rank * kShare, tile.group);
  }
}

/// One thread.
template <class Shape>
__device__ __forceinline__ void fetch_boxes(const Product& product, const Shared<Shape>& shared,
                                            typename Shape::Walk walk, const CUtensorMap* x_map,
                                            const CUtensorMap* weight_map, int rank) {
  Ring<Shape::kSlots> ring;
  for (Tile tile; walk.next(tile);) {
    for (int step = 0; step < product.steps; ++step, ring.next()) {
      const int slot = ring.slot;
      if constexpr (Shape::kCluster == 1) {
        wait(&shared.empty[slot], ring.parity ^ 1);
      } else {
        wait_cluster(&shared.empty[slot], ring.parity ^ 1);
      }
      arrive_expect(&shared.full[slot], Shape::kSlotBytes);
      copy_box(shared.x(slot), x_map, &shared.full[slot], step * kStepInputs, tile.row + rank * Shape::kRows,
               0);
      fetch_weight(shared, slot, weight_map, tile, step, rank);
    }
  }
}

/// A warpgroup: eight neighbouring threads fetch a row's 128 bytes.
template <class Shape>
__device__ __forceinline__ void fetch_gathered(const Product& product, const Shared<Shape>& shared,
                                               typename Shape::Walk walk, const CUtensorMap* weight_map) {
  constexpr int kRowsAtOnce = 128 / 8;
  constexpr int kTurns = Shape::kRows / kRowsAtOnce;
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const auto* x = static_cast<const uint4*>(product.x);
  const std::uint32_t to = row * kRowBytes + (chunk ^ (row % 8)) * 16;
  Ring<Shape::kSlots> ring;
  for (Tile tile; walk.next(tile);) {
    std::uint32_t from[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int p =
          min(tile.row + row + i * kRowsAtOnce, tile.end - 1);  // rows past the end are computed for nothing
      from[i] = static_cast<std::uint32_t>(__ldg(product.gather + p)) *
                    static_cast<std::uint32_t>(product.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
    for (int step = 0; step < product.steps; ++step, ring.next()) {
      const int slot = ring.slot;
      wait(&shared.empty[slot], ring.parity ^ 1);
      if (threadIdx.x == 0) {
        arrive_expect(&shared.full[slot], Shape::kWeightBytes);
        fetch_weight(shared, slot, weight_map, tile, step, 0);
      }
      const bool inside = step * 8 + chunk < product.row_chunks;
      const std::uint32_t base = shared_address(shared.x(slot)) + to;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        copy_async_16(base + i * kRowsAtOnce * kRowBytes, x + (inside ? from[i] + step * 8 : from[i]),
                      inside);
      }
      arrive_after_copies(&shared.full[slot]);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void release(const Shared<Shape>& shared, int slot) {
  const int lane = threadIdx.x % 32;
  if constexpr (Shape::kCluster == 1) {
    if (lane == 0) arrive(&shared.empty[slot]);
  } else {
    if (lane < Shape::kCluster) arrive_at(&shared.empty[slot], lane);
  }
}

// The second multiplying warpgroup waits for the first.
__device__ __forceinline__ void pair_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ void pair_arrive() { asm volatile("bar.arrive 1, 256;" ::: "memory"); }

template <class T, class Shape>
__device__ __forceinline__ void multiply(const Product& product, const Shared<Shape>& shared,
                                         typename Shape::Walk walk, int rank) {
  constexpr int kN = Shape::kWarpgroupColumns;
  constexpr bool kByRows = Shape::kRows == 128;
  const int warpgroup = threadIdx.x / 128 - 1;
  const int row = rank * Shape::kRows + (kByRows ? warpgroup * 64 : 0) + threadIdx.x % 128 / 32 * 16 +
                  threadIdx.x % 32 / 4;
  const int column = kByRows ? 0 : warpgroup * kN;
  const std::uint32_t x = shared_address(shared.x(0)) + (kByRows ? warpgroup * 64 * kRowBytes : 0);
  const std::uint32_t weight = shared_address(shared.weight(0)) + column * kRowBytes;
  Ring<Shape::kSlots> ring;
  float d[kN / 2];
  bool lead = product.stagger > 0;
  for (Tile tile; walk.next(tile);) {
    int previous = 0;
    if (lead && warpgroup == 1) pair_sync();
    for (int step = 0; step < product.steps; ++step) {
      const int slot = ring.slot;
      wait(&shared.full[slot], ring.parity);
      if (product.gather != nullptr) fence_proxy_async();
      const std::uint64_t a = swizzled_operand(x + slot * Shape::kSlotBytes);
      const std::uint64_t b = swizzled_operand(weight + slot * Shape::kSlotBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStepInputs / 16; ++k) {
        wgmma<T, kN>(d, advanced(a, 32 * k), advanced(b, 32 * k), step > 0 || k > 0);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        release(shared, previous);
        if (lead && warpgroup == 0 && step == product.stagger) pair_arrive();
      }
      previous = slot;
      ring.next();
    }
    wgmma_wait<0>();
    release(shared, previous);
    if (lead && warpgroup == 0 && product.steps <= product.stagger) pair_arrive();
    lead = false;
    finish(product.finish, Sums<T, kN>{d, tile.row + row, tile.end, tile.column + column});
  }
}

template <class T, class Shape>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                   const __grid_constant__ Product product) {
  extern __shared__ std::byte dynamic[];
  __shared__ Barrier full[Shape::kSlots], empty[Shape::kSlots];
  const Shared<Shape> shared{dynamic + (1024 - shared_address(dynamic) % 1024) % 1024, full, empty};
  const bool gathered = product.gather != nullptr;
  const int rank = Shape::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&x_map);
    prefetch_map(&weight_map);
    for (int i = 0; i < Shape::kSlots; ++i) {
      barrier_init(&full[i], gathered ? 1 + 128 : 1);
      barrier_init(&empty[i], 8 * Shape::kCluster);  // a warp of each
    }
    fence_barrier_init();
  }
  if constexpr (Shape::kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
  wait_for_previous();
  let_next_start();
  const typename Shape::Walk walk(product.offsets, product.groups, product.rows, product.finish.columns,
                                  static_cast<int>(blockIdx.x) / Shape::kCluster,
                                  static_cast<int>(gridDim.x) / Shape::kCluster);
  if (threadIdx.x < 128) {
    lower_registers<40>();
    if (gathered) {
      if constexpr (Shape::kCluster == 1) fetch_gathered<Shape>(product, shared, walk, &weight_map);
    } else if (threadIdx.x == 0) {
      fetch_boxes<Shape>(product, shared, walk, &x_map, &weight_map, rank);
    }
    __syncwarp();
  } else {
    raise_registers<232>();
    multiply<T, Shape>(product, shared, walk, rank);
  }
  if constexpr (Shape::kCluster > 1) sync_cluster();  // no block leaves while another may write to it
}

template <class T, class Shape>
void launch_product(Cuda& device, const Linear& linear) {
  const Matrix& weight = linear.weight;
  const Groups& groups = linear.groups;
  const auto row_bytes = static_cast<std::uint64_t>(padded(weight.inputs)) * sizeof(T);
  const bool grouped = groups.offsets != nullptr;
  const int count = grouped ? groups.count : 1;
  const CUtensorMap weight_map =
      tensor_map({.data = weight.data,
                  .dtype = weight.dtype,
                  .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                            static_cast<std::uint64_t>(weight.outputs), static_cast<std::uint64_t>(count)},
                  .strides = {row_bytes, count > 1 ? groups.weight_stride : row_bytes},
                  .box = {kStepInputs, Shape::kColumns / Shape::kCluster, 1}});
  const CUtensorMap x_map = groups.gather != nullptr
                                ? weight_map  // unused
                                : tensor_map({.data = linear.x,
                                              .dtype = weight.dtype,
                                              .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)),
                                                        static_cast<std::uint64_t>(linear.rows), 1},
                                              .strides = {row_bytes, row_bytes},
                                              .box = {kStepInputs, Shape::kRows, 1}});
  Product product{.offsets = groups.offsets,
                  .gather = groups.gather,
                  .groups = count,
                  .rows = linear.rows,
                  .steps = (padded(weight.inputs) + kStepInputs - 1) / kStepInputs,
                  .row_chunks = static_cast<int>(row_bytes / 16),
                  .stagger = wgmma_stagger,
                  .x = linear.x};
  product.finish = {.ending = linear.ending,
                    .outputs = weight.outputs,
                    .columns = padded(weight.outputs),
                    .out = linear.out,
                    .scale = linear.scale,
                    .q = linear.q,
                    .rope = linear.rope,
                    .kv = linear.kv,
                    .layer = linear.layer,
                    .heads = linear.heads,
                    .slots = linear.slots};
  const int width = linear.ending == Ending::swiglu ? weight.outputs / 2
                    : linear.ending == Ending::qkv  ? linear.heads * linear.kv.head_dim
                                                    : weight.outputs;
  product.finish.stride = static_cast<std::size_t>(padded(width));

  const int unit = Shape::kRows * Shape::kCluster;
  const long long row_tiles = grouped ? linear.rows / unit + count : (linear.rows + unit - 1) / unit;
  const long long tiles = row_tiles * ((weight.outputs + Shape::kColumns - 1) / Shape::kColumns);
  const int clusters =
      static_cast<int>(std::min<long long>(tiles, device.multiprocessors() / Shape::kCluster));
  const auto kernel = product_kernel<T, Shape>;
  allow_shared(kernel, Shape::kSharedBytes);
  launch(device, kernel,
         {.grid = dim3(static_cast<unsigned>(clusters * Shape::kCluster)),
          .block = dim3(kThreads),
          .shared_bytes = Shape::kSharedBytes,
          .cluster = Shape::kCluster},
         x_map, weight_map, product);
}

}  // namespace

bool wgmma_takes(const Cuda& device, const Linear& linear) {
  return device.hopper() && linear.weight.dtype != DType::f32 &&
         (linear.ending != Ending::qkv ||
          (linear.kv.head_dim % 64 == 0 && linear.kv.dtype == linear.weight.dtype));
}

void run_wgmma(Cuda& device, const Linear& linear) {
  if (linear.rows <= 0) return;
  if (linear.weight.dtype == DType::f16) return launch_product<F16, TileShape<128, 128, 1>>(device, linear);
  switch (wgmma_variant) {
    default:
    case 0: return launch_product<Bf16, TileShape<128, 256, 1>>(device, linear);
    case 1: return launch_product<Bf16, TileShape<128, 128, 1>>(device, linear);
    case 2: return launch_product<Bf16, TileShape<64, 256, 1>>(device, linear);
    case 3: return launch_product<Bf16, TileShape<64, 128, 1>>(device, linear);
    case 4: return launch_product<Bf16, TileShape<128, 256, 2>>(device, linear);
  }
}

}  // namespace troupe::kernels::cuda
