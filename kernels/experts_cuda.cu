// Grouped products with few rows per group on Hopper: memory-bound, so all that counts is that weights never
// stop coming.
//
// A persistent kernel, one block per multiprocessor, each with a contiguous run of the weights: the outputs
// of all groups in units of 16 rows, cut into equal shares by what they cost. So no multiprocessor ends
// early, whatever the number of experts that a batch touches. A block's run is cut into tiles of up to 128
// outputs of one group; one warpgroup fills a ring of slots with 64 inputs of a tile (the copy engine) and of
// the group's rows of x (cp.async, by index); two warpgroups multiply, weights being the 64 rows of a wgmma
// and rows of x its columns, as many as the group has rounded up to a power of two.
//
// The shares begin with the shared slices, whose rows need no routing: their weights fill the ring while the
// router still runs. The second product knows its experts from the start and fills the ring while the first
// one ends.
//
// Every sum runs over the inputs in rising order in one thread's register, whatever the shares and the
// columns: a row's bits do not depend on the other rows.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_narrow.cuh"
#include "kernels/moe.h"

namespace troupe::kernels::cuda {

using namespace troupe::cuda;

namespace {

constexpr int kThreads = 384;
constexpr int kUnit = 16;  // weight rows; of gate|up 8 gates and their 8 ups
constexpr int kTileUnits = 8;
constexpr int kRowBytes = 128;  // of a slot: 64 inputs, swizzled
constexpr int kStepInputs = 64;
constexpr int kWeightBytes = kTileUnits * kUnit * kRowBytes;
constexpr int kMostColumns = 128;  // rows of x at once; with more, a tile is gone through again
constexpr int kMostSlots = 12;
constexpr int kMostShared = 220 * 1024;
constexpr int kMostGroups = kMostExperts + 64;

struct Arguments {
  const std::int32_t* offsets;
  const std::int32_t* gather;
  const uint4* x;
  Bf16* out;
  const float* scale;
  std::size_t out_stride;
  int experts, shared, batch_rows;
  int units;       ///< of a group
  int steps;       ///< of 64 inputs
  int row_chunks;  ///< 16-byte pieces of a row of x
  int slots, slot_bytes;
  bool swiglu, settled;
};

struct Tile {
  int group, first_unit, units;
  int first, rows;  ///< of x; none where only the weights are known
};

/// Where in the experts' units a share begins or ends.
struct Place {
  int group, unit;
};

struct Plan {
  std::int32_t offsets[kMostGroups + 1];
  int cost[kMostExperts + 1];  ///< of all groups before
  Place begin, end;
};

/// What a unit costs with so many rows of x: both come through the L2 cache, x once per 8 units.
__device__ int unit_cost(int rows) {
  return (rows + kMostColumns - 1) / kMostColumns * kTileUnits * kUnit + rows;
}

__device__ int shared_border(const Arguments& a, int block) {
  return static_cast<int>(static_cast<long long>(a.shared) * a.units * block / gridDim.x);
}

/// Where block `block`'s share of the experts begins.
__device__ Place border(const Arguments& a, const Plan& plan, int block) {
  const long long experts = plan.cost[a.experts];
  const long long of_shared = unit_cost(a.batch_rows);
  const long long blocks = gridDim.x;
  long long at = experts * block / blocks;
  if (experts >= blocks * of_shared) {  // even out what the whole units of the shared slices leave uneven
    at = (experts + of_shared * a.shared * a.units) * block / blocks - of_shared * shared_border(a, block);
  }
  if (block == static_cast<int>(blocks) || at >= experts) return {a.experts, 0};
  int low = 0, high = a.experts;  // the last group whose cost before is <= at
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (plan.cost[middle] <= at ? low : high) = middle;
  }
  const int rows = plan.offsets[low + 1] - plan.offsets[low];
  return {low, static_cast<int>((at - plan.cost[low]) / unit_cost(rows))};
}

/// One warp. Reads the offsets.
__device__ void make_plan(const Arguments& a, Plan& plan) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int groups = a.experts + a.shared;
  for (int g = lane; g <= groups; g += 32) plan.offsets[g] = __ldcg(a.offsets + g);
  __syncwarp();
  int carry = 0;
  for (int first = 0; first < a.experts; first += 32) {
    const int g = first + lane;
    const int own = g < a.experts ? a.units * unit_cost(plan.offsets[g + 1] - plan.offsets[g]) : 0;
    int sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (g < a.experts) plan.cost[g] = carry + sum - own;
    carry += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) plan.cost[a.experts] = carry;
  __syncwarp();
  if (lane < 2) (lane == 0 ? plan.begin : plan.end) = border(a, plan, static_cast<int>(blockIdx.x) + lane);
}

/// The block's tiles: of the shared slices, then, when there is a plan, of the experts.
class Walk {
 public:
  __device__ Walk(const Arguments& a, const Plan* plan)
      : a_(a),
        plan_(plan),
        shared_(shared_border(a, static_cast<int>(blockIdx.x))),
        shared_end_(shared_border(a, static_cast<int>(blockIdx.x) + 1)) {
    if (plan != nullptr) at_ = plan->begin;
  }

  __device__ bool next(Tile& tile) {
    if (plan_ != nullptr && tile.rows > kMostColumns) {
      tile.first += kMostColumns;
      tile.rows -= kMostColumns;
      return true;
    }
    if (!next_of_run(tile)) return false;
    tile.first = plan_ == nullptr ? 0 : plan_->offsets[tile.group];
    tile.rows = plan_ == nullptr ? 0 : plan_->offsets[tile.group + 1] - tile.first;
    return true;
  }

 private:
  __device__ bool next_of_run(Tile& tile) {
    if (shared_ < shared_end_) {
      const int slice = shared_ / a_.units;
      tile.group = a_.experts + slice;
      tile.first_unit = shared_ - slice * a_.units;
      tile.units = min(kTileUnits, min(a_.units - tile.first_unit, shared_end_ - shared_));
      shared_ += tile.units;
      return true;
    }
    if (plan_ == nullptr) return false;
    while (at_.group < plan_->end.group || (at_.group == plan_->end.group && at_.unit < plan_->end.unit)) {
      const int end = at_.group < plan_->end.group ? a_.units : plan_->end.unit;
      if (at_.unit >= end || plan_->offsets[at_.group] == plan_->offsets[at_.group + 1]) {
        at_ = {at_.group + 1, 0};
        continue;
      }
      tile.group = at_.group;
      tile.first_unit = at_.unit;
      tile.units = min(kTileUnits, end - at_.unit);
      at_.unit += tile.units;
      return true;
    }
    return false;
  }

  const Arguments& a_;
  const Plan* plan_;
  int shared_, shared_end_;
  Place at_{};
};

struct Ring {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ void next(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// One thread.
__device__ void fetch_weights(const Arguments& a, const CUtensorMap* whole, const CUtensorMap* unit,
                              std::byte* to, Barrier* full, const Tile& tile, int step) {
  arrive_expect(full, tile.units * kUnit * kRowBytes);
  const int output = tile.first_unit * kUnit;
  if (tile.units == kTileUnits) {
    copy_box(to, whole, full, step * kStepInputs, output, tile.group);
  } else {
    for (int u = 0; u < tile.units; ++u) {
      copy_box(to + u * kUnit * kRowBytes, unit, full, step * kStepInputs, output + u * kUnit, tile.group);
    }
  }
}

/// A warpgroup; thread 0 has already fetched the weights of the first `ahead` slots.
__device__ __forceinline__ void fetch(const Arguments& a, const Plan& plan, const CUtensorMap* whole,
                                      const CUtensorMap* unit, std::byte* slots, Barrier* full,
                                      Barrier* empty, int ahead) {
  constexpr int kRowsAtOnce = 128 / 8;
  constexpr int kTurns = kMostColumns / kRowsAtOnce;
  const int row = static_cast<int>(threadIdx.x / 8), chunk = static_cast<int>(threadIdx.x % 8);
  const std::uint32_t to = shared_address(slots) + kWeightBytes +
                           static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row % 8)) * 16);
  Ring ring;
  Walk walk(a, &plan);
  for (Tile tile{}; walk.next(tile);) {
    const int first = tile.first, rows = min(tile.rows, kMostColumns);
    std::uint32_t from[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int r = row + i * kRowsAtOnce;
      if (i * kRowsAtOnce >= rows) break;
      const int p = first + min(r, rows - 1);
      from[i] = static_cast<std::uint32_t>(a.gather != nullptr ? __ldcg(a.gather + p) : p) *
                    static_cast<std::uint32_t>(a.row_chunks) +
                static_cast<std::uint32_t>(chunk);
    }
    for (int step = 0; step < a.steps; ++step, ring.next(a.slots)) {
      Barrier* filled = full + ring.slot;
      if (ahead > 0) {
        --ahead;
      } else {
        wait(empty + ring.slot, ring.parity ^ 1);
        if (threadIdx.x == 0) {
          fetch_weights(a, whole, unit, slots + ring.slot * a.slot_bytes, filled, tile, step);
        }
      }
      const bool inside = step * 8 + chunk < a.row_chunks;
      const std::uint32_t base = to + static_cast<std::uint32_t>(ring.slot * a.slot_bytes);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        if (i * kRowsAtOnce >= rows) break;
        if (row + i * kRowsAtOnce < rows) {
          copy_async_16(base + i * kRowsAtOnce * kRowBytes, a.x + (inside ? from[i] + step * 8 : from[i]),
                        inside);
        }
      }
      arrive_after_copies(filled);
    }
  }
}

__device__ __forceinline__ std::uint32_t two(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&v);
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

/// A warp's 16 outputs × N rows of x from registers to `out`.
template <int N>
__device__ __forceinline__ void finish(const Arguments& a, float (&d)[N / 2], int output, int first,
                                       int rows) {
  const int line = static_cast<int>(threadIdx.x % 32 / 4), quarter = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < N / 8; ++j) {
    if (8 * j >= rows) break;
    Bf16* to = a.out + static_cast<std::size_t>(first + 8 * j + line) * a.out_stride + 2 * quarter;
    const bool there = 8 * j + line < rows;
    const float* v = d + 4 * j;
    if (a.swiglu) {
      const std::uint32_t y = transposed(two(silu(v[0]) * v[2], silu(v[1]) * v[3]));
      if (there) *reinterpret_cast<std::uint32_t*>(to + output / 2) = y;
    } else {
      const int row = 8 * j + 2 * quarter;
      const float left = row < rows ? a.scale[first + row] : 0.0f;
      const float right = row + 1 < rows ? a.scale[first + row + 1] : 0.0f;
      const std::uint32_t upper = transposed(two(left * v[0], right * v[1]));
      const std::uint32_t lower = transposed(two(left * v[2], right * v[3]));
      if (there) {
        *reinterpret_cast<std::uint32_t*>(to + output) = upper;
        *reinterpret_cast<std::uint32_t*>(to + output + 8) = lower;
      }
    }
  }
}

__device__ __forceinline__ void release(Barrier* empty) {
  if (threadIdx.x % 32 == 0) arrive(empty);
}

template <int N>
__device__ __forceinline__ void multiply_tile(const Arguments& a, std::uint32_t slots, Barrier* full,
                                              Barrier* empty, Ring& ring, const Tile& tile, int first,
                                              int rows) {
  const int warpgroup = static_cast<int>(threadIdx.x / 128) - 1;
  float d[N / 2];
  int previous = 0;
  for (int step = 0; step < a.steps; ++step, ring.next(a.slots)) {
    const int slot = ring.slot;
    wait(full + slot, ring.parity);
    fence_proxy_async();
    const std::uint32_t at = slots + static_cast<std::uint32_t>(slot * a.slot_bytes);
    const std::uint64_t w = swizzled_operand(at + static_cast<std::uint32_t>(warpgroup * 64 * kRowBytes));
    const std::uint64_t x = swizzled_operand(at + kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepInputs / 16; ++k) {
      wgmma_of<N>(d, advanced(w, 32 * k), advanced(x, 32 * k), step > 0 || k > 0);
    }
    wgmma_commit();
    if (step > 0) {
      wgmma_wait<1>();
      release(empty + previous);
    }
    previous = slot;
  }
  wgmma_wait<0>();
  release(empty + previous);
  const int unit = warpgroup * 4 + static_cast<int>(threadIdx.x % 128 / 32);
  if (unit < tile.units) finish<N>(a, d, (tile.first_unit + unit) * kUnit, first, rows);
}

__device__ __forceinline__ void multiply(const Arguments& a, const Plan& plan, std::byte* memory,
                                         Barrier* full, Barrier* empty) {
  const std::uint32_t slots = shared_address(memory);
  const int warpgroup = static_cast<int>(threadIdx.x / 128) - 1;
  Ring ring;
  Walk walk(a, &plan);
  for (Tile tile{}; walk.next(tile);) {
    if (tile.units <= warpgroup * 4) {  // the other one's alone
      for (int step = 0; step < a.steps; ++step, ring.next(a.slots)) {
        wait(full + ring.slot, ring.parity);
        release(empty + ring.slot);
      }
      continue;
    }
    const int rows = min(tile.rows, kMostColumns);
    const auto with = [&]<int N>() { multiply_tile<N>(a, slots, full, empty, ring, tile, tile.first, rows); };
    if (rows <= 8) {
      with.template operator()<8>();
    } else if (rows <= 16) {
      with.template operator()<16>();
    } else if (rows <= 32) {
      with.template operator()<32>();
    } else if (rows <= 64) {
      with.template operator()<64>();
    } else {
      with.template operator()<kMostColumns>();
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    experts_kernel(const __grid_constant__ CUtensorMap whole, const __grid_constant__ CUtensorMap unit,
                   const __grid_constant__ Arguments a) {
  extern __shared__ std::byte dynamic[];
  __shared__ Barrier full[kMostSlots], empty[kMostSlots];
  __shared__ Plan plan;
  std::byte* slots = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  if (threadIdx.x == 0) {
    prefetch_map(&whole);
    prefetch_map(&unit);
    for (int i = 0; i < a.slots; ++i) {
      barrier_init(&full[i], 1 + 128);
      barrier_init(&empty[i], 8);
    }
    fence_barrier_init();
  }
  // Weights are constants, but which ones is written by the router: those of the shared slices are known.
  if (a.settled && threadIdx.x / 32 == 4) make_plan(a, plan);
  __syncthreads();
  int ahead = 0;
  if (threadIdx.x < 128) {
    const bool one_pass =
        a.settled || a.batch_rows <= kMostColumns;  // else the second tile may be the first again
    Walk walk(a, a.settled ? &plan : nullptr);
    for (Tile tile{}; ahead < a.slots && (ahead == 0 || one_pass) && walk.next(tile);) {
      for (int step = 0; step < a.steps && ahead < a.slots; ++step, ++ahead) {
        if (threadIdx.x == 0) {
          fetch_weights(a, &whole, &unit, slots + ahead * a.slot_bytes, &full[ahead], tile, step);
        }
      }
    }
  }
  wait_for_previous();
  if (!a.settled && threadIdx.x / 32 == 4) make_plan(a, plan);
  __syncthreads();
  let_next_start();  // not before: what the previous kernel wrote is settled for the next one
  if (threadIdx.x < 128) {
    lower_registers<56>();
    fetch(a, plan, &whole, &unit, slots, full, empty, ahead);
  } else {
    raise_registers<224>();
    multiply(a, plan, slots, full, empty);
  }
}

}  // namespace

bool experts_take(const Cuda& device, const Experts& experts) {
  const Linear& linear = experts.linear;
  return device.hopper() && linear.weight.dtype == DType::bf16 && experts.batch_rows <= kMostExpertRows &&
         linear.groups.count <= kMostGroups &&
         (linear.ending == Ending::swiglu || linear.ending == Ending::store_scaled);
}

void run_experts(Cuda& device, const Experts& experts) {
  const Linear& linear = experts.linear;
  const Matrix& weight = linear.weight;
  const auto row_bytes = static_cast<std::uint64_t>(padded(weight.inputs)) * 2;
  const int outputs = padded(weight.outputs);
  const auto map = [&](int rows) {
    return tensor_map(
        {.data = weight.data,
         .dtype = weight.dtype,
         .sizes = {static_cast<std::uint64_t>(padded(weight.inputs)), static_cast<std::uint64_t>(outputs),
                   static_cast<std::uint64_t>(linear.groups.count)},
         .strides = {row_bytes, linear.groups.weight_stride},
         .box = {kStepInputs, static_cast<std::uint32_t>(rows), 1}});
  };
  const bool swiglu = linear.ending == Ending::swiglu;
  Arguments a{.offsets = linear.groups.offsets,
              .gather = linear.groups.gather,
              .x = static_cast<const uint4*>(linear.x),
              .out = static_cast<Bf16*>(linear.out),
              .scale = linear.scale,
              .out_stride = static_cast<std::size_t>(padded(swiglu ? weight.outputs / 2 : weight.outputs)),
              .experts = linear.groups.count - experts.shared,
              .shared = experts.shared,
              .batch_rows = experts.batch_rows,
              .units = outputs / kUnit,
              .steps = (padded(weight.inputs) + kStepInputs - 1) / kStepInputs,
              .row_chunks = static_cast<int>(row_bytes / 16),
              .swiglu = swiglu,
              .settled = experts.settled};
  const int columns =
      std::clamp(static_cast<int>(std::bit_ceil(static_cast<unsigned>(experts.batch_rows))), 8, kMostColumns);
  a.slot_bytes = kWeightBytes + columns * kRowBytes;
  a.slots = std::min(kMostSlots, kMostShared / a.slot_bytes);
  const std::size_t bytes = 1024 + static_cast<std::size_t>(a.slots * a.slot_bytes);
  allow_shared(experts_kernel, bytes);
  launch(device, experts_kernel,
         {.grid = unsigned(device.multiprocessors()), .block = kThreads, .shared_bytes = bytes},
         map(kTileUnits * kUnit), map(kUnit), a);
}

}  // namespace troupe::kernels::cuda
