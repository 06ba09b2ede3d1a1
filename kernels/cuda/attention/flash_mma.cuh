#pragma once
// Prefill attention by mma.sync and cp.async: for GPUs without wgmma.
//
// A block computes 128 rows of one KV head: the q heads of that head for 128 / group neighbouring tokens of a
// sequence, row = token × group + head. So keys and values are read once for all heads of a group. Each of
// the four warps has 32 rows, because with 16 shared memory could not keep up with the tensor cores. Pages of
// 64 tokens are visited in rising order; softmax is computed while they stream: running maximum, sum and O.
//   S[32 × 64] = Q[32 × head_dim] · K^T       O[32 × head_dim] += P[32 × 64] · V
// K and V each have one buffer. The next keys are copied while the values are multiplied, the values while
// the scores are computed. Two blocks of a multiprocessor overlap the rest; a block needs 64 KiB.
//
// Tiles are counted over all sequences on the device, since a graph freezes what the host knew, and run from
// the last to the first: those at the end of a prompt have the most pages.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/attention/mma_softmax.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp_scan.cuh"

namespace troupe::kernels::cuda {

struct FlashMmaArgs {
  const std::byte* q = nullptr;
  std::byte* out = nullptr;
  const std::byte* kv = nullptr;
  std::size_t block_bytes = 0;
  std::size_t key_offset = 0, value_offset = 0;  ///< bytes; of KV block 0, KV head 0
  std::size_t row_bytes = 0;                     ///< of q and out
  const SequenceRows* sequences = nullptr;
  int count = 0;
  int group = 0;  ///< q heads of a KV head
  int first = 0;  ///< Attention::first
  float scale_log2 = 0;
};

inline constexpr int kFlashMmaRows = 128;
inline constexpr int kFlashMmaThreads = 128;
/// Tokens of a tile.
constexpr int flash_mma_tokens(int group) { return kFlashMmaRows / group; }

template <class Element, int kDim>
struct FlashMmaShape {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kPieceBytes = kBlockTokens * kHeadDim * 2;  ///< of K or V of a page
  static constexpr int kQBytes = kFlashMmaRows * kHeadDim * 2;
  static constexpr int kSharedBytes = kQBytes + 2 * kPieceBytes;
};

/// The tokens of one sequence that a block computes.
struct FlashMmaTile {
  const BlockId* blocks = nullptr;
  int position = 0;  ///< of the first token
  int row = 0;       ///< of the first token
  int tokens = 0;    ///< 0: none
};

/// The index-th tile from the end. By whole warps. Sequences of one token have none.
__device__ __forceinline__ FlashMmaTile find_flash_mma_tile(const SequenceRows* sequences, int count,
                                                            int tile_tokens, int index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto tiles_of = [&](int s) {
    if (s >= count || sequences[s].tokens <= 1) return 0;
    return (sequences[s].tokens + tile_tokens - 1) / tile_tokens;
  };
  for (int base = (count - 1) / 32 * 32; base >= 0; base -= 32) {
    const int s = base + 31 - lane;  // lane 0 has the last sequence
    const int mine = tiles_of(s);
    const int upto = inclusive_sum(mine, lane);
    const unsigned holds = __ballot_sync(~0u, index < upto);
    if (holds == 0) {
      index -= __shfl_sync(~0u, upto, 31);
      continue;
    }
    const int owner = __ffs(static_cast<int>(holds)) - 1;
    const int within = __shfl_sync(~0u, upto, owner) - 1 - index;  // from the sequence's first tile
    const SequenceRows sequence = sequences[base + 31 - owner];
    const int token = within * tile_tokens;
    return {.blocks = sequence.blocks,
            .position = sequence.position + token,
            .row = sequence.row + token,
            .tokens = min(tile_tokens, sequence.tokens - token)};
  }
  return {};
}

/// One block's tile. Shared memory: Q, K, V, each in halves of 64 dimensions, [head_dim / 64][rows][64], with
/// 16-byte chunk c of row r at c ^ (r % 8), as KV memory has them (product/layout.h).
template <class Shape>
class FlashMmaBlock {
 public:
  using T = typename Shape::T;
  static constexpr int kHeadDim = Shape::kHeadDim;
  static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, of a row
  static constexpr int kTilesM = 2;             // of 16 rows, of a warp

  __device__ FlashMmaBlock(const FlashMmaArgs& args, const FlashMmaTile& tile, int kv_head, char* shared)
      : a_(args),
        tile_(tile),
        kv_head_(kv_head),
        rows_(tile.tokens * args.group),
        q_(ptx::shared_address(shared)),
        k_(q_ + Shape::kQBytes),
        v_(k_ + Shape::kPieceBytes),
        q_bytes_(shared) {
    const int low = lane_ % 8, middle = lane_ / 8 % 2, high = lane_ / 16;
    q_operand_ = q_ + chunk_at(kFlashMmaRows, warp_ * 32 + middle * 8 + low, high);
    k_operand_ = k_ + chunk_at(kBlockTokens, high * 8 + low, middle);
    v_operand_ = v_ + chunk_at(kBlockTokens, middle * 8 + low, high);
  }

  __device__ void run() {
    const int end = tile_.position + tile_.tokens, pages = (end + kBlockTokens - 1) / kBlockTokens;
    copy_queries();
    copy_piece(k_, 0, a_.key_offset);
    ptx::copy_async_commit();
    copy_piece(v_, 0, a_.value_offset);
    ptx::copy_async_commit();
    place_rows();
    for (int page = 0; page < pages; ++page) {
      ptx::copy_async_wait<1>();
      __syncthreads();
      multiply_keys();
      __syncthreads();
      if (page + 1 < pages) copy_piece(k_, page + 1, a_.key_offset);
      ptx::copy_async_commit();
      softmax(page);
      ptx::copy_async_wait<1>();
      __syncthreads();
      multiply_values();
      __syncthreads();
      if (page + 1 < pages) copy_piece(v_, page + 1, a_.value_offset);
      ptx::copy_async_commit();
    }
    store();
  }

 private:
  __device__ static ptx::SharedAddress chunk_at(int rows, int row, int chunk) {
    return static_cast<ptx::SharedAddress>(chunk / 8 * (rows * 128) + row * 128 + (chunk % 8 ^ row % 8) * 16);
  }
  /// The operand that lies 2 * pair chunks and `more` bytes, whole multiples of eight rows, after `operand`,
  /// whose chunk is 0 or 1. An exclusive or of the address takes fewer registers than an address each.
  __device__ static ptx::SharedAddress operand_at(ptx::SharedAddress operand, int rows, int pair, int more) {
    return (operand ^ static_cast<ptx::SharedAddress>(pair % 4 * 32)) +
           static_cast<ptx::SharedAddress>(pair / 4 * (rows * 128) + more);
  }
  /// Bytes of row r of the tile in q and out.
  __device__ std::size_t row_at(int r) const {
    const int token = r / a_.group, head = kv_head_ * a_.group + r - token * a_.group;
    return static_cast<std::size_t>(tile_.row + token) * a_.row_bytes +
           static_cast<std::size_t>(head) * (kHeadDim * 2);
  }

  __device__ void copy_queries() const {
    for (int i = thread_; i < kFlashMmaRows * kChunks; i += kFlashMmaThreads) {
      const int r = i / kChunks, chunk = i % kChunks;
      const bool there = r < rows_;
      ptx::copy_async_16_or_zero(q_ + chunk_at(kFlashMmaRows, r, chunk),
                                 a_.q + row_at(there ? r : 0) + chunk * 16, there);
    }
  }
  /// K or V of a page. Tokens that the tile's last row does not see may be anything in memory, and zero times
  /// NaN is NaN: they become zeros here.
  __device__ void copy_piece(ptx::SharedAddress to, int page, std::size_t offset) const {
    const std::byte* from = a_.kv + static_cast<std::size_t>(tile_.blocks[page]) * a_.block_bytes + offset +
                            static_cast<std::size_t>(kv_head_) * Shape::kPieceBytes;
    const int end = tile_.position + tile_.tokens - page * kBlockTokens, begin = page == 0 ? a_.first : 0;
#pragma unroll
    for (int i = 0; i < Shape::kPieceBytes / 16 / kFlashMmaThreads; ++i) {
      const int at = i * kFlashMmaThreads + thread_, token = at / 8 % kBlockTokens;
      ptx::copy_async_16_or_zero(to + static_cast<ptx::SharedAddress>(at * 16), from + at * 16,
                                 token < end && token >= begin);
    }
  }

  __device__ void place_rows() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = warp_ * 32 + m * 16 + i * 8 + lane_ / 4;
        position_[m][i] = tile_.position + min(r / a_.group, tile_.tokens - 1);
        maximum_[m][i] = -INFINITY;
        sum_[m][i] = 0;
      }
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) o_[m][n][0] = o_[m][n][1] = o_[m][n][2] = o_[m][n][3] = 0;
    }
  }

  __device__ void multiply_keys() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) s_[m][n][0] = s_[m][n][1] = s_[m][n][2] = s_[m][n][3] = 0;
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      std::uint32_t q[kTilesM][4];
#pragma unroll
      for (int m = 0; m < kTilesM; ++m)
        ptx::ldmatrix_x4(q[m], operand_at(q_operand_, kFlashMmaRows, k, m * (16 * 128)));
#pragma unroll
      for (int n = 0; n < 4; ++n) {  // 16 tokens
        std::uint32_t keys[4];
        ptx::ldmatrix_x4(keys, operand_at(k_operand_, kBlockTokens, k, n * (16 * 128)));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::mma<T>(s_[m][2 * n], q[m][0], q[m][1], q[m][2], q[m][3], keys[0], keys[1]);
          ptx::mma<T>(s_[m][2 * n + 1], q[m][0], q[m][1], q[m][2], q[m][3], keys[2], keys[3]);
        }
      }
    }
  }

  /// Scores to probabilities, in place.
  __device__ void softmax(int page) {
    const int base = page * kBlockTokens;
    if (base + kBlockTokens - 1 > tile_.position || (page == 0 && a_.first > 0)) {
      const int begin = page == 0 ? a_.first : 0;
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int token = n * 8 + lane_ % 4 * 2 + c % 2;
            if (base + token > position_[m][c / 2] || token < begin) s_[m][n][c] = -INFINITY;
          }
        }
      }
    }
    stream_softmax(s_, maximum_, sum_, o_, a_.scale_log2);
  }

  __device__ void multiply_values() {
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 16 tokens
      std::uint32_t p[kTilesM][4];
      pack_probabilities<T>(p, s_, k);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        std::uint32_t values[4];
        ptx::ldmatrix_x4_transposed(values, operand_at(v_operand_, kBlockTokens, n, k * (16 * 128)));
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
          ptx::mma<T>(o_[m][2 * n], p[m][0], p[m][1], p[m][2], p[m][3], values[0], values[1]);
          ptx::mma<T>(o_[m][2 * n + 1], p[m][0], p[m][1], p[m][2], p[m][3], values[2], values[3]);
        }
      }
    }
  }

  /// Through the warp's own rows of Q, which it alone has read.
  __device__ void store() {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sum_[m][i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float factor = 1 / sum;
        const int row = warp_ * 32 + m * 16 + i * 8 + lane_ / 4;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          *reinterpret_cast<std::uint32_t*>(q_bytes_ + chunk_at(kFlashMmaRows, row, n) + lane_ % 4 * 4) =
              pack_two<T>(o_[m][n][2 * i] * factor, o_[m][n][2 * i + 1] * factor);
        }
      }
    }
    __syncwarp();
    for (int i = lane_; i < 32 * kChunks; i += 32) {
      const int row = warp_ * 32 + i / kChunks, chunk = i % kChunks;
      if (row >= rows_) break;
      *reinterpret_cast<uint4*>(a_.out + row_at(row) + chunk * 16) =
          *reinterpret_cast<const uint4*>(q_bytes_ + chunk_at(kFlashMmaRows, row, chunk));
    }
  }

  const FlashMmaArgs& a_;
  const FlashMmaTile tile_;
  const int kv_head_, rows_;
  const ptx::SharedAddress q_, k_, v_;
  char* const q_bytes_;
  ptx::SharedAddress q_operand_, k_operand_, v_operand_;  // this lane's first rows for ldmatrix
  const int thread_ = static_cast<int>(threadIdx.x), lane_ = thread_ % 32, warp_ = thread_ / 32;
  // Lane 4 g + t has rows g and g + 8 of each 16: [.][0] and [.][1].
  int position_[kTilesM][2];  // of the row's token
  float maximum_[kTilesM][2];
  float sum_[kTilesM][2];  // of this lane's columns
  float s_[kTilesM][8][4];
  float o_[kTilesM][kHeadDim / 8][4];
};

/// Block (x, y): tile x from the end, KV head y.
template <class Shape>
__global__ void __launch_bounds__(kFlashMmaThreads, 2) flash_mma_kernel(const FlashMmaArgs a) {
  extern __shared__ __align__(128) char shared[];
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const FlashMmaTile tile =
      find_flash_mma_tile(a.sequences, a.count, flash_mma_tokens(a.group), static_cast<int>(blockIdx.x));
  if (tile.tokens <= 0) return;
  FlashMmaBlock<Shape>(a, tile, static_cast<int>(blockIdx.y), shared).run();
}

}  // namespace troupe::kernels::cuda
