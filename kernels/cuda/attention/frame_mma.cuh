#pragma once
// Attention within a frame by mma.sync and cp.async, for heads of 80 dimensions: for GPUs without wgmma.
//
// A block has 128 queries of a head and all keys. Each of its four warps has 32 queries, which it keeps as
// operands in registers. Half a tile of keys and values, 64 rows, fills one of two stages, so that the next
// half is copied while this one is multiplied. With base 2 and the scale times log2(e),
//   S[32 × 64] = Q[32 × 80] · K^T, p = exp2(scale * (S - m)), O[32 × 80] += p · V,
// m being the largest score so far. The tiles' swizzle of 32-byte rows (frame.h) gives the eight rows that
// ldmatrix reads at a time different banks, too.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/frame.h"
#include "kernels/cuda/attention/mma_softmax.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

inline constexpr int kFrameMmaThreads = 128;
inline constexpr int kFrameMmaKeys = 64;                                      ///< of a stage
inline constexpr int kFrameMmaPartBytes = kFrameGroups * kFrameMmaKeys * 32;  ///< keys or values of a stage
inline constexpr int kFrameMmaStageBytes = 2 * kFrameMmaPartBytes;
inline constexpr int kFrameMmaBytes = 2 * kFrameMmaStageBytes;
static_assert(kFrameMmaStageBytes == kFrameTileBytes);  // the queries first lie where the second stage will

/// One block's queries.
template <class T>
class FrameMmaBlock {
 public:
  static constexpr int kTilesM = 2;  // of 16 queries, of a warp

  __device__ FrameMmaBlock(const FrameArgs& args, char* shared) : a_(args), at_(ptx::shared_address(shared)) {
    const int low = lane_ % 8, middle = lane_ / 8 % 2, high = lane_ / 16;
    query_place_ = frame_chunk_at(warp_ * 32 + middle * 8 + low, high);
    key_place_ = frame_chunk_at(high * 8 + low, middle);
    value_place_ = kFrameMmaPartBytes + frame_chunk_at(middle * 8 + low, high);
  }

  __device__ void run() {
    const int halves = (a_.rows + kFrameMmaKeys - 1) / kFrameMmaKeys;
    copy_queries();
    ptx::copy_async_commit();
    copy_half(0);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    __syncthreads();
    load_queries();
    for (int half = 0; half < halves; ++half) {
      ptx::copy_async_wait<0>();
      __syncthreads();  // this half is there, and all have read what the next one overwrites
      if (half + 1 < halves) copy_half(half + 1);
      ptx::copy_async_commit();
      const ptx::SharedAddress stage = stage_of(half);
      multiply_keys(stage + key_place_);
      softmax(a_.rows - half * kFrameMmaKeys);
      multiply_values(stage + value_place_);
    }
    store();
  }

 private:
  __device__ ptx::SharedAddress stage_of(int half) const {
    return at_ + static_cast<ptx::SharedAddress>(half % 2 * kFrameMmaStageBytes);
  }
  __device__ const std::byte* tile(int part, int index) const {
    return a_.packed + frame_tile_at(part, static_cast<int>(blockIdx.y), index, a_.heads, a_.tiles);
  }

  __device__ void copy_queries() const {
    const std::byte* from = tile(0, a_.first_tile + static_cast<int>(blockIdx.x)) + thread_ * 16;
    const ptx::SharedAddress to = stage_of(1) + static_cast<ptx::SharedAddress>(thread_ * 16);
#pragma unroll
    for (int i = 0; i < kFrameTileBytes; i += kFrameMmaThreads * 16)
      ptx::copy_async_16(to + static_cast<ptx::SharedAddress>(i), from + i);
  }
  /// Of each group of dimensions a half is one piece, 16 bytes for each thread.
  __device__ void copy_half(int half) const {
    static_assert(kFrameMmaThreads * 16 == kFrameMmaKeys * 32);
    const int rows_at = half % 2 * (kFrameMmaKeys * 32) + thread_ * 16;
    const ptx::SharedAddress to = stage_of(half) + static_cast<ptx::SharedAddress>(thread_ * 16);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const std::byte* from = tile(1 + part, half / 2) + rows_at;
#pragma unroll
      for (int group = 0; group < kFrameGroups; ++group) {
        ptx::copy_async_16(
            to + static_cast<ptx::SharedAddress>(part * kFrameMmaPartBytes + group * (kFrameMmaKeys * 32)),
            from + group * kFrameGroupBytes);
      }
    }
  }

  __device__ void load_queries() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int group = 0; group < kFrameGroups; ++group) {
        ptx::ldmatrix_x4(q_[m][group],
                         stage_of(1) + query_place_ +
                             static_cast<ptx::SharedAddress>(group * kFrameGroupBytes + m * (16 * 32)));
      }
    }
  }

  __device__ void multiply_keys(ptx::SharedAddress keys_at) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < kFrameMmaKeys / 8; ++n) s_[m][n][0] = s_[m][n][1] = s_[m][n][2] = s_[m][n][3] = 0;
    }
#pragma unroll
    for (int group = 0; group < kFrameGroups; ++group) {
#pragma unroll
      for (int n = 0; n < kFrameMmaKeys / 16; ++n) {
        std::uint32_t keys[4];
        ptx::ldmatrix_x4(
            keys, keys_at + static_cast<ptx::SharedAddress>(group * (kFrameMmaKeys * 32) + n * (16 * 32)));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          const std::uint32_t(&q)[4] = q_[m][group];
          ptx::mma<T>(s_[m][2 * n], q[0], q[1], q[2], q[3], keys[0], keys[1]);
          ptx::mma<T>(s_[m][2 * n + 1], q[0], q[1], q[2], q[3], keys[2], keys[3]);
        }
      }
    }
  }

  /// Scores to probabilities, in place; `left` keys from this half's first on exist.
  __device__ void softmax(int left) {
    if (left < kFrameMmaKeys) {
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int n = 0; n < kFrameMmaKeys / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (n * 8 + lane_ % 4 * 2 + c % 2 >= left) s_[m][n][c] = -INFINITY;
          }
        }
      }
    }
    stream_softmax(s_, maximum_, sum_, o_, a_.scale_log2);
  }

  __device__ void multiply_values(ptx::SharedAddress values_at) {
#pragma unroll
    for (int k = 0; k < kFrameMmaKeys / 16; ++k) {
      std::uint32_t p[kTilesM][4];
      pack_probabilities<T>(p, s_, k);
#pragma unroll
      for (int group = 0; group < kFrameGroups; ++group) {
        std::uint32_t values[4];
        ptx::ldmatrix_x4_transposed(values, values_at + static_cast<ptx::SharedAddress>(
                                                            group * (kFrameMmaKeys * 32) + k * (16 * 32)));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::mma<T>(o_[m][2 * group], p[m][0], p[m][1], p[m][2], p[m][3], values[0], values[1]);
          ptx::mma<T>(o_[m][2 * group + 1], p[m][0], p[m][1], p[m][2], p[m][3], values[2], values[3]);
        }
      }
    }
  }

  __device__ void store() const {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sum_[m][i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float factor = 1.0f / sum;
        const int query = static_cast<int>(blockIdx.x) * kFrameTile + warp_ * 32 + m * 16 + i * 8 +
                          lane_ / 4;  // of this launch
        if (query >= a_.queries) continue;
        T* to = static_cast<T*>(a_.out) + static_cast<std::size_t>(query) * a_.stride +
                static_cast<int>(blockIdx.y) * kFrameDim + lane_ % 4 * 2;
#pragma unroll
        for (int n = 0; n < kFrameDim / 8; ++n) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * n) =
              pack_two<T>(o_[m][n][2 * i] * factor, o_[m][n][2 * i + 1] * factor);
        }
      }
    }
  }

  const FrameArgs& a_;
  const ptx::SharedAddress at_;
  const int thread_ = static_cast<int>(threadIdx.x), lane_ = thread_ % 32, warp_ = thread_ / 32;
  // Where this lane's rows for ldmatrix lie: in the tile of queries, and in a stage.
  ptx::SharedAddress query_place_, key_place_, value_place_;
  std::uint32_t q_[kTilesM][kFrameGroups][4];
  // Lane 4 g + t has rows g and g + 8 of each 16: [.][0] and [.][1].
  float maximum_[kTilesM][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
  float sum_[kTilesM][2] = {};  // of this lane's keys
  float s_[kTilesM][kFrameMmaKeys / 8][4];
  float o_[kTilesM][kFrameDim / 8][4] = {};
};

/// Block (x, y): tile x of the queries, head y.
template <class T>
__global__ void __launch_bounds__(kFrameMmaThreads, 2) frame_mma_kernel(const __grid_constant__ FrameArgs a) {
  extern __shared__ __align__(128) char shared[];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  FrameMmaBlock<T>(a, shared).run();
}

}  // namespace troupe::kernels::cuda
