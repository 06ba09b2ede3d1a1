// Matrix products of many rows on Hopper.
//
// A persistent kernel, one block of three warpgroups per multiprocessor. The first fetches tiles of x and of
// the weight into a ring of slots in shared memory (the copy engine; rows that an index names by cp.async, in
// the same swizzle). The other two multiply: a tile of 128 rows is cut between them by rows, one of 64 rows
// by columns. While one of them turns its sums into results the other still multiplies, and the ring already
// fills for the next tile; the second is held back by a slot at the very start, so that they never end a tile
// together.
//
// A product with too few tiles for all multiprocessors is cut along k too: the blocks of a cluster each sum a
// part of the inputs for the same tile, then each takes a share of its columns, adds up the parts in the
// order of the blocks and ends it.
//
// Every sum runs over k in rising order in one thread's register whatever the shape of the tile, so a row's
// bits do not depend on the other rows.
#include <algorithm>
#include <cmath>
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
long long* wgmma_debug = nullptr;

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
  long long* debug = nullptr;
  const void* x = nullptr;
  Finish finish{};
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
  /// Small tiles leave room for a second block on the multiprocessor: of this kernel, or of the next one,
  /// which then fetches its first weights early.
  static constexpr int kBlocks = kRows == 64 && kColumns == 128 ? 2 : 1;
  static constexpr int kSlots = std::min(8, (kMostShared / kBlocks - 2048) / kSlotBytes);
  static constexpr int kFetchRegisters = 40;
  static constexpr int kMultiplyRegisters = kBlocks == 2 ? 96 : 232;
  static constexpr int kSharedBytes = kSlots * kSlotBytes + 1024;
  /// A gate and its up value lie in one block.
  static constexpr bool kPairs = kWarpgroupColumns / kSplit % 64 == 0;
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
struct Shared {
  std::byte* slots;
  Barrier* full;
  Barrier* empty;
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

/// The steps along k that are this block's.
struct Steps {
  int begin, end;
};
template <class Shape>
__device__ __forceinline__ Steps steps_of(const Product& product) {
  if constexpr (Shape::kSplit == 1) {
    return {0, product.steps};
  } else {
    const int rank = static_cast<int>(cluster_rank());
    return {product.steps * rank / Shape::kSplit, product.steps * (rank + 1) / Shape::kSplit};
  }
}

/// One thread. Weights are constants: a dense product's first ones are fetched while the previous kernel
/// still runs.
template <class Shape>
__device__ __forceinline__ void fetch_boxes(const Product& product, const Shared<Shape>& shared,
                                            const CUtensorMap* x_map, const CUtensorMap* weight_map) {
  const bool early = product.offsets == nullptr;
  if (!early) wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  Tile tile;
  if (!walk.next(tile)) return wait_for_previous();
  const auto fetch_weight = [&](int slot, int step) {
    arrive_expect(&shared.full[slot], Shape::kSlotBytes);
    copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kStepInputs, tile.column,
             tile.group);
  };
  int ahead = 0;  // weights that are on their way without their x
  if (early) {
    for (; ahead < min(Shape::kSlots, steps.end - steps.begin); ++ahead)
      fetch_weight(ahead, steps.begin + ahead);
    wait_for_previous();
  }
  do {
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      if (ahead == 0) {
        wait(&shared.empty[slot], ring.parity ^ 1);
        fetch_weight(slot, step);
      } else {
        --ahead;
      }
      copy_box(shared.x(slot), x_map, &shared.full[slot], step * kStepInputs, tile.row, 0);
    }
  } while (walk.next(tile));
}

/// A warpgroup: eight neighbouring threads fetch a row's 128 bytes.
template <class Shape>
__device__ __forceinline__ void fetch_gathered(const Product& product, const Shared<Shape>& shared,
                                               const CUtensorMap* weight_map) {
  constexpr int kRowsAtOnce = 128 / 8;
  constexpr int kTurns = Shape::kRows / kRowsAtOnce;
  wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const auto* x = static_cast<const uint4*>(product.x);
  const std::uint32_t to = row * kRowBytes + (chunk ^ (row % 8)) * 16;
  Ring<Shape::kSlots> ring;
  for (Tile tile; walk.next(tile);) {
    std::uint32_t from[kTurns];
    const int here =
        (tile.end - tile.row - row + kRowsAtOnce - 1) / kRowsAtOnce;  // of my rows; the rest gets zeros
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int p =
          min(tile.row + row + i * kRowsAtOnce, tile.end - 1);  // rows past the end: computed for nothing
      from[i] = static_cast<std::uint32_t>(__ldg(product.gather + p)) *
                    static_cast<std::uint32_t>(product.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      wait(&shared.empty[slot], ring.parity ^ 1);
      if (threadIdx.x == 0) {
        arrive_expect(&shared.full[slot], Shape::kWeightBytes);
        copy_box(shared.weight(slot), weight_map, &shared.full[slot], step * kStepInputs, tile.column,
                 tile.group);
      }
      const int turns = step * 8 + chunk < product.row_chunks ? here : 0;
      const std::uint32_t base = shared_address(shared.x(slot)) + to;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        copy_async_16(base + i * kRowsAtOnce * kRowBytes, x + (i < turns ? from[i] + step * 8 : from[i]),
                      i < turns);
      }
      arrive_after_copies(&shared.full[slot]);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void release(const Shared<Shape>& shared, int slot) {
  if (threadIdx.x % 32 == 0) arrive(&shared.empty[slot]);
}

// The second multiplying warpgroup waits for the first.
__device__ __forceinline__ void pair_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ void pair_arrive() { asm volatile("bar.arrive 1, 256;" ::: "memory"); }

/// Leaves this thread's sums where the cluster's blocks find them. The ring is empty by then.
template <class Shape, int kSums>
__device__ __forceinline__ void leave_sums(const Shared<Shape>& shared, const float (&d)[kSums]) {
  auto* to = reinterpret_cast<float4*>(shared.slots) + (threadIdx.x - 128);
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    to[i * 256] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  }
}

/// This block's share of the columns, summed up over the blocks of the cluster.
template <class Shape, int kSums>
__device__ __forceinline__ void gather_sums(const Shared<Shape>& shared, float (&d)[kSums]) {
  const int rank = static_cast<int>(cluster_rank());
  const std::uint32_t from =
      shared_address(shared.slots) + ((rank * (kSums / 4)) * 256 + threadIdx.x - 128) * 16;
#pragma unroll
  for (int block = 0; block < Shape::kSplit; ++block) {
    const std::uint32_t there = address_at(from, block);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float4 part = load_cluster(there + i * 256 * 16);
      d[4 * i] = block == 0 ? part.x : d[4 * i] + part.x;
      d[4 * i + 1] = block == 0 ? part.y : d[4 * i + 1] + part.y;
      d[4 * i + 2] = block == 0 ? part.z : d[4 * i + 2] + part.z;
      d[4 * i + 3] = block == 0 ? part.w : d[4 * i + 3] + part.w;
    }
  }
}

template <class T, class Shape>
__device__ __forceinline__ void multiply(const Product& product, const Shared<Shape>& shared) {
  constexpr int kN = Shape::kWarpgroupColumns;
  constexpr bool kByRows = Shape::kRows == 128;
  const int warpgroup = threadIdx.x / 128 - 1;
  const int first_row = kByRows ? warpgroup * 64 : 0;
  const int row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int column = kByRows ? 0 : warpgroup * kN;
  const std::uint32_t x = shared_address(shared.x(0)) + first_row * kRowBytes;
  const std::uint32_t weight = shared_address(shared.weight(0)) + column * kRowBytes;
  wait_for_previous();
  auto walk = walk_of<Shape>(product);
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  float d[kN / 2];
  bool start = true;
  for (Tile tile; walk.next(tile); start = false) {
    if (start && warpgroup == 1) pair_sync();
    if (Shape::kSplit == 1 && tile.row + first_row >= tile.end) {  // no row of mine
      if (start && warpgroup == 0) pair_arrive();
      for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
        wait(&shared.full[ring.slot], ring.parity);
        release(shared, ring.slot);
      }
      continue;
    }
    int previous = 0;
    for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
      const int slot = ring.slot;
      wait(&shared.full[slot], ring.parity);
      if (product.gather != nullptr) fence_proxy_async();
      const std::uint64_t a = swizzled_operand(x + slot * Shape::kSlotBytes);
      const std::uint64_t b = swizzled_operand(weight + slot * Shape::kSlotBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStepInputs / 16; ++k) {
        wgmma<T, kN>(d, advanced(a, 32 * k), advanced(b, 32 * k), step > steps.begin || k > 0);
      }
      wgmma_commit();
      if (step > steps.begin) {
        wgmma_wait<1>();
        release(shared, previous);
      }
      if (start && warpgroup == 0 && step == min(steps.begin + product.stagger, steps.end - 1)) pair_arrive();
      previous = slot;
    }
    wgmma_wait<0>();
    release(shared, previous);
    if constexpr (Shape::kSplit == 1) {
      finish(product.finish, Sums<T, kN>{d, tile.row + row, tile.end, tile.column + column});
    } else {
      constexpr int kShare = kN / Shape::kSplit;
      // Both warpgroups are through with the ring before it becomes a place for sums.
      asm volatile("bar.sync 2, 256;" ::: "memory");
      leave_sums(shared, d);
      sync_cluster();
      float share[kShare / 2];
      gather_sums(shared, share);
      finish(product.finish,
             Sums<T, kShare>{share, tile.row + row, tile.end,
                             tile.column + column + static_cast<int>(cluster_rank()) * kShare});
    }
  }
  if (Shape::kSplit > 1 && start) sync_cluster();  // no tile for this cluster: the fetching warps count on it
}

template <class T, class Shape>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                   const __grid_constant__ Product product) {
  extern __shared__ std::byte dynamic[];
  __shared__ Barrier full[Shape::kSlots], empty[Shape::kSlots];
  const Shared<Shape> shared{dynamic + (1024 - shared_address(dynamic) % 1024) % 1024, full, empty};
  const bool gathered = product.gather != nullptr;
  if (threadIdx.x == 0) {
    prefetch_map(&x_map);
    prefetch_map(&weight_map);
    for (int i = 0; i < Shape::kSlots; ++i) {
      barrier_init(&full[i], gathered ? 1 + 128 : 1);
      barrier_init(&empty[i], 8);  // a warp of each
    }
    fence_barrier_init();
  }
  __syncthreads();
  let_next_start();
  long long c0 = 0, t0 = 0;
  if (product.debug != nullptr && threadIdx.x == 0 && blockIdx.x == 0) {
    wait_for_previous();
    c0 = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
  }
  if (threadIdx.x < 128) {
    lower_registers<Shape::kFetchRegisters>();
    if (gathered) {
      fetch_gathered<Shape>(product, shared, &weight_map);
    } else if (threadIdx.x == 0) {
      fetch_boxes<Shape>(product, shared, &x_map, &weight_map);
    } else {
      wait_for_previous();
    }
    __syncwarp();
    if constexpr (Shape::kSplit > 1) sync_cluster();  // the sums are there
  } else {
    raise_registers<Shape::kMultiplyRegisters>();
    multiply<T, Shape>(product, shared);
  }
  if constexpr (Shape::kSplit > 1) sync_cluster();  // no block leaves while another reads from it
  if (product.debug != nullptr && threadIdx.x == 0 && blockIdx.x == 0) {
    long long t1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t1));
    product.debug[0] = clock64() - c0;
    product.debug[1] = t1 - t0;
  }
}

template <class T, class Shape>
void launch_product(Cuda& device, const Linear& linear) {
  if constexpr (Shape::kSplit > 1) {
    if (padded(linear.weight.inputs) <= (Shape::kSplit - 1) * kStepInputs ||
        (linear.ending == Ending::swiglu && !Shape::kPairs))
      return launch_product<T, TileShape<Shape::kRows, Shape::kColumns>>(device, linear);
  } else if constexpr (!Shape::kPairs) {
    if (linear.ending == Ending::swiglu) return launch_product<T, TileShape<128, 128>>(device, linear);
  }
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
                  .box = {kStepInputs, Shape::kColumns, 1}});
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
                  .debug = wgmma_debug,
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

  const long long row_tiles =
      grouped ? linear.rows / Shape::kRows + count : (linear.rows + Shape::kRows - 1) / Shape::kRows;
  const long long tiles = row_tiles * ((product.finish.columns + Shape::kColumns - 1) / Shape::kColumns);
  const long long blocks = Shape::kSplit > 1
                               ? tiles * Shape::kSplit
                               : std::min<long long>(tiles, device.multiprocessors() * Shape::kBlocks);
  const auto kernel = product_kernel<T, Shape>;
  allow_shared(kernel, Shape::kSharedBytes);
  launch(device, kernel,
         {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kThreads),
          .shared_bytes = Shape::kSharedBytes,
          .cluster = Shape::kSplit},
         x_map, weight_map, product);
}

/// What a tile costs, in cycles as measured on an H200: a step along k, and what comes after all steps (in
/// `add` the old values travel too).
struct Cost {
  int rows, columns, split;
  int step;
};
constexpr Cost kCosts[] = {{128, 256, 1, 1100}, {128, 192, 1, 850}, {128, 160, 1, 750},
                           {128, 128, 1, 620},  {64, 256, 1, 720},  {64, 128, 1, 470},
                           {128, 128, 2, 620},  {128, 128, 4, 620}, {64, 128, 2, 470}};
constexpr int kLaunchCost = 5000, kEndCost = 4000, kAddCost = 8000, kSplitCost = 5000;

double cost_of(const Cost& c, const Linear& linear, int multiprocessors) {
  const int columns = padded(linear.weight.outputs),
            steps = (padded(linear.weight.inputs) + kStepInputs - 1) / kStepInputs;
  const bool grouped = linear.groups.offsets != nullptr;
  const double column_tiles = (columns + c.columns - 1) / c.columns;
  const double area = static_cast<double>(c.rows * c.columns) / (128 * 256);
  const double end = area * (linear.ending == Ending::add ? kAddCost : kEndCost);
  const double tile = static_cast<double>(steps) / c.split * c.step + end;
  if (grouped) {
    const double rows = static_cast<double>(linear.rows) / linear.groups.count;
    const double tiles = linear.groups.count * std::max(1.0, rows / c.rows + 0.5) * column_tiles;
    return kLaunchCost + std::max(1.0, tiles / multiprocessors) * tile;
  }
  const double blocks = (linear.rows + c.rows - 1) / c.rows * column_tiles * c.split;
  // Clusters of four leave some multiprocessors of a partition unused.
  const double waves = std::ceil(blocks / (c.split == 4 ? multiprocessors * 10 / 11 : multiprocessors));
  return kLaunchCost + waves * tile + (c.split > 1 ? kSplitCost : 0);
}

Cost choose(const Linear& linear, int multiprocessors) {
  const Cost* best = nullptr;
  double least = 0;
  for (const Cost& c : kCosts) {
    const int share = (c.rows == 128 ? c.columns : c.columns / 2) / c.split;
    if (linear.ending == Ending::swiglu && share % 64 != 0) continue;  // gate and up value in one thread
    if (c.split > 1 &&
        (linear.groups.offsets != nullptr || padded(linear.weight.inputs) < 4 * c.split * kStepInputs))
      continue;
    const double cost = cost_of(c, linear, multiprocessors);
    if (best == nullptr || cost < least) {
      best = &c;
      least = cost;
    }
  }
  return *best;
}

template <class T, int kRows, int kColumns, int kSplit>
bool launch_if(Cuda& device, const Linear& linear, const Cost& choice) {
  if (choice.rows != kRows || choice.columns != kColumns || choice.split != kSplit) return false;
  launch_product<T, TileShape<kRows, kColumns, kSplit>>(device, linear);
  return true;
}

}  // namespace

bool wgmma_takes(const Cuda& device, const Linear& linear) {
  return device.hopper() && linear.weight.dtype != DType::f32 &&
         (linear.ending != Ending::qkv ||
          (linear.kv.head_dim % 64 == 0 && linear.kv.dtype == linear.weight.dtype));
}

void run_wgmma(Cuda& device, const Linear& linear) {
  if (linear.rows <= 0) return;
  if (linear.weight.dtype == DType::f16) return launch_product<F16, TileShape<128, 128>>(device, linear);
  Cost choice = choose(linear, device.multiprocessors());
  if (wgmma_variant >= 0) choice = kCosts[wgmma_variant];
  [[maybe_unused]] const bool launched = launch_if<Bf16, 128, 256, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 128, 192, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 128, 160, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 128, 128, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 64, 256, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 64, 128, 1>(device, linear, choice) ||
                                         launch_if<Bf16, 128, 128, 2>(device, linear, choice) ||
                                         launch_if<Bf16, 128, 128, 4>(device, linear, choice) ||
                                         launch_if<Bf16, 64, 128, 2>(device, linear, choice);
}

}  // namespace troupe::kernels::cuda
