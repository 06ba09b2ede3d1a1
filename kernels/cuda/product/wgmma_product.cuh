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
#include <cstdint>

#include "kernels/cuda/product/wgmma_biased.cuh"
#include "kernels/cuda/product/wgmma_fetch.cuh"

namespace troupe::kernels::cuda {

/// The sums times the scales of their outputs. `scaled` may be `d`; but where others than products write the
/// registers of sums, the assembler waits for each product (C7515).
template <int kSums>
__device__ __forceinline__ void scale_outputs(const Product& product, const ProductTile& tile, int column,
                                              const float (&d)[kSums], float (&scaled)[kSums]) {
  const auto* scales = reinterpret_cast<const float*>(product.scales + static_cast<std::size_t>(tile.group) *
                                                                           product.scales_stride);
  const int first = column + threadIdx.x % 4 * 2, last = product.finish.columns - 2;
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float2 s = *reinterpret_cast<const float2*>(scales + min(first + 8 * j, last));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scaled[4 * j + 2 * half] = d[4 * j + 2 * half] * s.x;
      scaled[4 * j + 2 * half + 1] = d[4 * j + 2 * half + 1] * s.y;
    }
  }
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

/// The operands of a warpgroup in the ring's first slot.
struct WgmmaOperands {
  std::uint32_t x, weight;
};

/// d = the sum over the tile's steps. The products of a step run while the slot before is given back.
template <class T, class Shape, int kSums>
__device__ __forceinline__ void sum_steps(const WgmmaShared<Shape>& shared, const WgmmaOperands& operands,
                                          const Steps& steps, Ring<Shape::kSlots>& ring, float (&d)[kSums]) {
  int previous = 0;
  for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
    const int slot = ring.slot;
    ptx::mbarrier_wait(&shared.full[slot], ring.parity);
    const std::uint64_t a = ptx::swizzled_operand(operands.x + slot * Shape::kSlotBytes);
    const std::uint64_t b = ptx::swizzled_operand(operands.weight + slot * Shape::kSlotBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k) {
      ptx::wgmma<T, 2 * kSums>(d, ptx::advanced(a, 32 * k), ptx::advanced(b, 32 * k),
                               step > steps.begin || k > 0);
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
}

/// A thread's two rows of x in a tile. Requested a tile ahead where rows are gathered.
struct RowsOfX {
  int upper = 0, lower = 0;

  RowsOfX() = default;

  __device__ RowsOfX(const Product& product, const ProductTile& tile, int row)
      : upper(at(product, min(tile.row + row, tile.end - 1))),
        lower(at(product, min(tile.row + row + 8, tile.end - 1))) {}

 private:
  __device__ static int at(const Product& product, int p) {
    return product.gather != nullptr ? __ldcg(product.gather + p) : p;
  }
};

/// fp8: the scales of a thread's two rows of x, some steps ahead: a load from L2 takes longer than a step.
/// Past the L1 cache, as GroupOffsets are read.
class XScales {
 public:
  static constexpr int kAtOnce = 4;
  float upper[kAtOnce] = {}, lower[kAtOnce] = {};  ///< of the next steps

  /// Requests those of the first steps of a tile.
  __device__ __forceinline__ void enter(const Product& product, const RowsOfX& rows, const Steps& steps) {
    upper_ =
        product.x_scales + static_cast<std::size_t>(rows.upper) * static_cast<std::size_t>(product.steps);
    lower_ =
        product.x_scales + static_cast<std::size_t>(rows.lower) * static_cast<std::size_t>(product.steps);
    load(steps.begin, steps.end);
  }
  __device__ __forceinline__ void load(int first, int end) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < end) {
        upper[i] = __ldcg(upper_ + first + i);
        lower[i] = __ldcg(lower_ + first + i);
      }
    }
  }

 private:
  const float* upper_ = nullptr;
  const float* lower_ = nullptr;
};

/// The same for fp8. A step is a block of inputs: the tensor cores sum it up with about 14 bits, then its
/// sums are multiplied by both scales and added to d in fp32. Meanwhile the other warpgroup's products run.
template <class Shape, int kSums>
__device__ __forceinline__ void sum_blocks(const WgmmaShared<Shape>& shared, const WgmmaOperands& operands,
                                           XScales& x_scales, int column, const Steps& steps,
                                           Ring<Shape::kSlots>& ring, float (&d)[kSums]) {
  constexpr int kEights = kSums / 4, kAtOnce = XScales::kAtOnce;
  constexpr int kDifferent = Shape::kScales == WgmmaScales::pairs ? 2 : kEights;
#pragma unroll
  for (int i = 0; i < kSums; ++i) d[i] = 0;
  for (int first = steps.begin; first < steps.end; first += kAtOnce) {
    float upper_of_x[kAtOnce], lower_of_x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      upper_of_x[i] = x_scales.upper[i];
      lower_of_x[i] = x_scales.lower[i];
    }
    x_scales.load(first + kAtOnce, steps.end);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= steps.end) break;
      const int slot = ring.slot;
      ptx::mbarrier_wait(&shared.full[slot], ring.parity);
      const std::uint64_t a = ptx::swizzled_operand(operands.x + slot * Shape::kSlotBytes);
      const std::uint64_t b = ptx::swizzled_operand(operands.weight + slot * Shape::kSlotBytes);
      float block[kSums];
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kRowBytes / 32; ++k)
        ptx::wgmma<__nv_fp8_e4m3, 2 * kSums>(block, ptx::advanced(a, 32 * k), ptx::advanced(b, 32 * k),
                                             k > 0);
      ptx::wgmma_commit();
      float of_weight[kDifferent];
      const float* scales = shared.scales(slot) + column / kFp8ScaleOutputs;
#pragma unroll
      for (int j = 0; j < kDifferent; j += 2)
        reinterpret_cast<float2*>(of_weight)[j / 2] = reinterpret_cast<const float2*>(scales)[j / 2];
      ptx::wgmma_wait<0>();
      ptx::changed_asynchronously(block);
      release(shared, slot);
      ring.next();
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const float scale = of_weight[j % kDifferent];
        const float upper = upper_of_x[i] * scale, lower = lower_of_x[i] * scale;
        d[4 * j] = fmaf(block[4 * j], upper, d[4 * j]);
        d[4 * j + 1] = fmaf(block[4 * j + 1], upper, d[4 * j + 1]);
        d[4 * j + 2] = fmaf(block[4 * j + 2], lower, d[4 * j + 2]);
        d[4 * j + 3] = fmaf(block[4 * j + 3], lower, d[4 * j + 3]);
      }
    }
  }
}

/// Offsets that are copied to shared memory, and so the groups that need no load from L2.
inline constexpr int kCopiedOffsets = 272;

/// Copies the first offsets. Both warpgroups that multiply. Source: has offsets and groups, as Product.
template <class Source>
__device__ __forceinline__ GroupOffsets copy_offsets(const Source& product, std::int32_t* copies) {
  if (product.offsets == nullptr) return {};
  const int copied = min(product.groups + 1, kCopiedOffsets);
  for (int i = static_cast<int>(threadIdx.x) - 128; i < copied; i += 256)
    copies[i] = __ldcg(product.offsets + i);
  ptx::barrier_sync<2, 256>();
  return {product.offsets, copies, copied};
}

template <class T, class Shape>
__device__ __forceinline__ void multiply(const Product& product, const WgmmaShared<Shape>& shared,
                                         std::int32_t* offset_copies) {
  constexpr int kN = Shape::kWarpgroupColumns;
  constexpr bool kByRows = Shape::kRows == 128;
  const int warpgroup = threadIdx.x / 128 - 1;
  const int first_row = kByRows ? warpgroup * 64 : 0;
  const int row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const int column = kByRows ? 0 : warpgroup * kN;
  const WgmmaOperands operands{ptx::shared_address(shared.x(0)) + first_row * kRowBytes,
                               ptx::shared_address(shared.weight(0)) + column * kRowBytes};
  wait_for_previous();
  let_next_start();  // not earlier in a grouped product: it holds the next kernel (Groups::settled)
  auto walk = walk_of<Shape>(product, copy_offsets(product, offset_copies));
  const Steps steps = steps_of<Shape>(product);
  Ring<Shape::kSlots> ring;
  float d[kN / 2];
  ProductTile tile, next;
  bool more = walk.next(next);
  if (Shape::kSplit > 1 && !more)
    ptx::cluster_sync();  // no tile for this cluster: the fetching warps count on it
  [[maybe_unused]] XScales x_scales;
  if constexpr (Shape::kFp8) {
    if (more) x_scales.enter(product, RowsOfX(product, next, row), steps);
  }
  while (more) {
    tile = next;
    more = walk.next(next);
    // next() leaves the last tile as it is: then its rows are loaded again, and not used.
    RowsOfX next_rows;
    if constexpr (Shape::kFp8) next_rows = RowsOfX(product, next, row);
    const bool mine = Shape::kSplit > 1 || tile.row + first_row < tile.end;
    if (!mine) {
      for (int step = steps.begin; step < steps.end; ++step, ring.next()) {
        ptx::mbarrier_wait(&shared.full[ring.slot], ring.parity);
        release(shared, ring.slot);
      }
    } else if constexpr (Shape::kFp8) {
      sum_blocks(shared, operands, x_scales, column, steps, ring, d);
    } else {
      sum_steps<T>(shared, operands, steps, ring, d);
    }
    if constexpr (Shape::kFp8) x_scales.enter(product, next_rows, steps);
    if (!mine) continue;
    if constexpr (Shape::kSplit == 1) {
      const Sums<T, kN> sums{d, tile.row + row, tile.end, tile.column + column};
      if constexpr (Shape::kScales == WgmmaScales::outputs && kN > 128) {
        // With registers of their own scaled sums would spill, which costs more than the waits.
        scale_outputs(product, tile, sums.column, d, d);
        finish(product.finish, sums);
      } else if constexpr (Shape::kScales == WgmmaScales::outputs) {
        float scaled[kN / 2];
        scale_outputs(product, tile, sums.column, d, scaled);
        finish(product.finish, Sums<T, kN>{scaled, sums.row, sums.end, sums.column});
      } else if constexpr (requires { Shape::kBiased; }) {
        finish_biased(product.finish, sums);
      } else {
        finish(product.finish, sums);
      }
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
}

/// A tile of LinearBias.
template <int kRows, int kColumns>
struct BiasedTile : TileShape<kRows, kColumns> {
  static constexpr bool kBiased = true;
};

template <class T, class Shape>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
                   const __grid_constant__ Product product) {
  extern __shared__ std::byte dynamic[];
  __shared__ ptx::Barrier full[Shape::kSlots], empty[Shape::kSlots];
  __shared__ std::int32_t offset_copies[kCopiedOffsets];
  const WgmmaShared<Shape> shared{dynamic + (1024 - ptx::shared_address(dynamic) % 1024) % 1024, full, empty};
  const bool gathered = product.gather != nullptr;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&x_map);
    ptx::prefetch_tensor_map(&weight_map);
    // The copy engine's, and each fetching warp's.
    const int full_arrivals = gathered ? 5 : 1;
    for (int i = 0; i < Shape::kSlots; ++i) {
      ptx::mbarrier_init(&full[i], full_arrivals);
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
    multiply<T, Shape>(product, shared, offset_copies);
  }
  if constexpr (Shape::kSplit > 1) ptx::cluster_sync();  // no block leaves while another reads from it
}

}  // namespace troupe::kernels::cuda
