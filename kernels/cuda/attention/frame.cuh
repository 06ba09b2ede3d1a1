#pragma once
// Attention within a frame on Hopper's tensor cores, for heads of 80 dimensions.
//
// A block takes 128 queries of a head and all keys: a warp fetches tiles of 128 keys and values into rings of
// slots, two warpgroups of 64 queries each compute, with base 2 and the scale times log2(e),
//   S = Q · K^T (wgmma), p = exp2(scale * S - m), O = O + p · V (wgmma, p from registers),
// m being the largest score so far. The scores of the next tile run beside the product with this one's
// values. Blocks are as short as a tile of queries, so that work of other streams finds a multiprocessor
// soon.
#include "kernels/cuda/attention/frame.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda {

inline constexpr int kFrameThreads = 384;
inline constexpr int kFrameSlots = 4;

struct FrameShared {
  alignas(1024) std::byte queries[kFrameTileBytes];
  alignas(1024) std::byte keys[kFrameSlots][kFrameTileBytes];
  alignas(1024) std::byte values[kFrameSlots][kFrameTileBytes];
  ptx::Barrier queries_full;
  ptx::Barrier keys_full[kFrameSlots], keys_empty[kFrameSlots];
  ptx::Barrier values_full[kFrameSlots], values_empty[kFrameSlots];
};

/// One thread.
__device__ __forceinline__ void fetch_frame(const FrameArgs& a, FrameShared& shared) {
  const int head = static_cast<int>(blockIdx.y);
  const auto fetch = [&](std::byte* to, int part, int tile, ptx::Barrier* full) {
    ptx::mbarrier_arrive_expect(full, kFrameTileBytes);
    ptx::bulk_copy(to, a.packed + frame_tile_at(part, head, tile, a.heads, a.tiles), kFrameTileBytes, full);
  };
  fetch(shared.queries, 0, a.first_tile + static_cast<int>(blockIdx.x), &shared.queries_full);
  for (int tile = 0; tile < a.tiles; ++tile) {
    const int slot = tile % kFrameSlots;
    const std::uint32_t emptied = (tile / kFrameSlots - 1) & 1;  // at first: returns at once
    ptx::mbarrier_wait(&shared.keys_empty[slot], emptied);
    fetch(shared.keys[slot], 1, tile, &shared.keys_full[slot]);
    ptx::mbarrier_wait(&shared.values_empty[slot], emptied);
    fetch(shared.values[slot], 2, tile, &shared.values_full[slot]);
  }
}

/// A warpgroup's 64 queries.
template <class T>
class FrameConsumer {
 public:
  __device__ FrameConsumer(const FrameArgs& a, FrameShared& shared)
      : a_(a),
        shared_(shared),
        warpgroup_(static_cast<int>(threadIdx.x) / 128 - 1),
        thread_(static_cast<int>(threadIdx.x) % 128) {}

  __device__ __forceinline__ void run() {
    float o[kFrameDim / 2];
    float s[kFrameTile / 2];
    std::uint32_t p[kFrameTile / 16][4];
    float factor[2];
#pragma unroll
    for (int i = 0; i < kFrameDim / 2; ++i) o[i] = 0;
    ptx::mbarrier_wait(&shared_.queries_full, 0);
    ptx::mbarrier_wait(&shared_.keys_full[0], 0);
    start_scores(s, 0);
    ptx::wgmma_wait<0>();
    ptx::changed_asynchronously(s);
    release(&shared_.keys_empty[0]);
    exponentials(s, 0, factor);  // O is 0: there is nothing to multiply
    round_to_operand(p, s);
    for (int tile = 1; tile < a_.tiles; ++tile) {
      const int slot = tile % kFrameSlots, before = (tile - 1) % kFrameSlots;
      ptx::mbarrier_wait(&shared_.keys_full[slot], tile / kFrameSlots & 1);
      start_scores(s, slot);
      ptx::mbarrier_wait(&shared_.values_full[before], (tile - 1) / kFrameSlots & 1);
      start_values(o, p, before);
      ptx::wgmma_wait<1>();
      ptx::changed_asynchronously(s);
      release(&shared_.keys_empty[slot]);
      // One wait per branch: a single one before them would be moved up before the exponentials.
      if (exponentials(s, tile, factor)) {
        ptx::wgmma_wait<0, 1>();
        ptx::changed_asynchronously(o);
        release(&shared_.values_empty[before]);
#pragma unroll
        for (int i = 0; i < kFrameDim / 2; ++i) o[i] *= factor[i / 2 % 2];
      } else {
        ptx::wgmma_wait<0, 2>();
        ptx::changed_asynchronously(o);
        release(&shared_.values_empty[before]);
      }
      round_to_operand(p, s);
    }
    const int last = a_.tiles - 1;
    ptx::mbarrier_wait(&shared_.values_full[last % kFrameSlots], last / kFrameSlots & 1);
    start_values(o, p, last % kFrameSlots);
    ptx::wgmma_wait<0, 3>();
    ptx::changed_asynchronously(o);
    store(o);
  }

 private:
  __device__ __forceinline__ void release(ptx::Barrier* empty) const {
    if (thread_ % 32 == 0) ptx::mbarrier_arrive(empty);
    __syncwarp();
  }

  /// Starts S = Q · K^T, a step of 16 dimensions for each group.
  __device__ __forceinline__ void start_scores(float (&s)[kFrameTile / 2], int slot) const {
    const std::uint64_t queries =
        ptx::narrow_operand(ptx::shared_address(shared_.queries) + warpgroup_ * (64 * 32));
    const std::uint64_t keys = ptx::narrow_operand(ptx::shared_address(shared_.keys[slot]));
    ptx::wgmma_fence();
#pragma unroll
    for (int group = 0; group < kFrameGroups; ++group) {
      ptx::wgmma<T, kFrameTile>(s, ptx::advanced(queries, group * kFrameGroupBytes),
                                ptx::advanced(keys, group * kFrameGroupBytes), group > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts O += P · V, a step for each 16 keys.
  __device__ __forceinline__ void start_values(float (&o)[kFrameDim / 2],
                                               const std::uint32_t (&p)[kFrameTile / 16][4], int slot) const {
    const std::uint64_t values =
        ptx::narrow_operand(ptx::shared_address(shared_.values[slot]), 256, kFrameGroupBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kFrameTile / 16; ++k)
      ptx::wgmma<T, kFrameDim, true>(o, p[k], ptx::advanced(values, k * (16 * 32)), true);
    ptx::wgmma_commit();
  }

  /// s becomes exp2(scale * s - m), 0 behind the last key. True if m rose in a row of this warp: O then has
  /// to be multiplied by `factor`.
  __device__ __forceinline__ bool exponentials(float (&s)[kFrameTile / 2], int tile, float (&factor)[2]) {
    const int left = a_.rows - tile * kFrameTile;  // keys of this tile
    if (left < kFrameTile) {
      const int key = thread_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < kFrameTile / 2; ++i) {
        if (key + i / 4 * 8 + i % 2 >= left) s[i] = -INFINITY;
      }
    }
    float most[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < kFrameTile / 2; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
    bool rises = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
      const float m = fmaxf(m_[r], most[r] * a_.scale_log2);
      rises |= m > m_[r];
      factor[r] = ptx::exp2_approx(m_[r] - m);  // the first time: of minus infinity, 0
      m_[r] = m;
      sum_[r] *= factor[r];
    }
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < kFrameTile / 2; ++i) {
      s[i] = ptx::exp2_approx_in_order(fmaf(s[i], a_.scale_log2, -m_[i / 2 % 2]));
      sum[i / 2 % 2] += s[i];
    }
    sum_[0] += sum[0];
    sum_[1] += sum[1];
    return __any_sync(~0u, rises);
  }

  /// Two groups of eight keys are a step of wgmma's operand in registers.
  __device__ __forceinline__ static void round_to_operand(std::uint32_t (&p)[kFrameTile / 16][4],
                                                          const float (&s)[kFrameTile / 2]) {
#pragma unroll
    for (int k = 0; k < kFrameTile / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack_two<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ void store(const float (&o)[kFrameDim / 2]) const {
    const int query = static_cast<int>(blockIdx.x) * kFrameTile + warpgroup_ * 64 + thread_ / 32 * 16 +
                      thread_ % 32 / 4;  // of this launch
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float inverse = 1.0f / sum;
      if (query + 8 * r >= a_.queries) continue;
      T* to = static_cast<T*>(a_.out) + static_cast<std::size_t>(query + 8 * r) * a_.stride +
              static_cast<int>(blockIdx.y) * kFrameDim + thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < kFrameDim / 8; ++j) {
        const float low = o[4 * j + 2 * r] * inverse, high = o[4 * j + 2 * r + 1] * inverse;
        *reinterpret_cast<std::uint32_t*>(to + 8 * j) = pack_two<T>(low, high);
      }
    }
  }

  const FrameArgs& a_;
  FrameShared& shared_;
  const int warpgroup_, thread_;
  float m_[2] = {-INFINITY, -INFINITY};  ///< of this thread's two rows, times the scale
  float sum_[2] = {};                    ///< of the thread's own keys
};

template <class T>
__global__ void __launch_bounds__(kFrameThreads, 1) frame_kernel(const __grid_constant__ FrameArgs a) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<FrameShared*>(memory);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.queries_full, 1);
    for (int i = 0; i < kFrameSlots; ++i) {
      ptx::mbarrier_init(&shared.keys_full[i], 1);
      ptx::mbarrier_init(&shared.values_full[i], 1);
      ptx::mbarrier_init(&shared.keys_empty[i], 8);  // each warp that computes
      ptx::mbarrier_init(&shared.values_empty[i], 8);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  if (threadIdx.x < 128) {
    ptx::lower_registers<40>();
    if (threadIdx.x == 0) fetch_frame(a, shared);
  } else {
    ptx::raise_registers<232>();
    FrameConsumer<T>(a, shared).run();
  }
}

}  // namespace troupe::kernels::cuda
