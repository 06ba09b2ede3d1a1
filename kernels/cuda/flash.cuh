#pragma once
// Causal attention of pieces of prompts on Hopper's tensor cores.
//
// The unit of work is a tile of 64 kWarpgroups query rows against all keys up to the last one any of them
// sees. The q heads that share a KV head look at the same keys, so a row is (token, head of the group),
// packed token-major: a chunk of 8 tokens and 8 heads fills 64 rows instead of 8, and what is fetched of K
// and V serves all heads. A block is one warp that copies pages of K and V into a ring of stages, and
// kWarpgroups warpgroups of 64 rows each that compute
//   S = Q · K^T (wgmma), p = exp2(scale * S - m), O = O + p · V (wgmma, p from registers),
// S of the next stage running on the tensor cores while O's product of this one does and while the
// exponentials of the other warpgroups are computed; the warpgroups take turns in issuing, so that one's
// exponentials lie under another's products.
//
// m follows the row's maximum only when that has grown by more than 8 (as a power of two): p then stays below
// 256, nothing overflows, and O is hardly ever rescaled. The result is divided by the sum of p, so the
// choice of m changes roundings alone; it depends on the row alone.
//
// Blocks are persistent. Each builds the same plan from the sequences' lengths (device memory; the host knows
// only the rows), and takes every gridDim.x-th unit of it: sequences with the most keys first, within one
// all tiles of a KV head together (blocks that run at the same time read the same pages from the L2 cache),
// last tiles first because they are the long ones.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/batch.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace troupe::kernels::cuda {

/// Sequences of one launch; more are done by several.
inline constexpr int kFlashSequences = 1024;

struct FlashArguments {
  const void* q = nullptr;
  void* out = nullptr;
  const std::byte* kv = nullptr;
  std::size_t block_bytes = 0;
  std::size_t key_offset = 0;    ///< of the layer's first KV head in a block
  std::size_t value_offset = 0;  ///< likewise
  int row_stride = 0;            ///< elements, q and out
  int group = 0;                 ///< q heads of a KV head
  int kv_heads = 0;
  float scale_log2 = 0;  ///< scale * log2(e)
  const Sequence* sequences = nullptr;
  int count = 0;  ///< at most kFlashSequences
};

/// kPages pages of 64 tokens a stage. kQueryRegisters: Q stays in registers rather than shared memory.
template <class Element, int kDim, int kGroups, int kPageCount, int kStageCount, bool kQueryRegs = false,
          bool kTurns = true>
struct FlashShape {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarpgroups = kGroups;
  static constexpr int kPages = kPageCount;
  static constexpr int kStages = kStageCount;
  static constexpr bool kQueryRegisters = kQueryRegs;
  static constexpr bool kTakeTurns = kTurns;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kKeys = kBlockTokens * kPages;
  static constexpr int kHalves = kHeadDim / 64;
  static constexpr int kHalfBytes = kBlockTokens * 128;    // a page's 64 columns
  static constexpr int kPageBytes = kHalves * kHalfBytes;  // K or V of a page
  static constexpr int kStageBytes = kPages * kPageBytes;
  static constexpr int kQueryBytes = 64 * kHeadDim * 2;  // of one warpgroup
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  // Registers a thread, of 65536 in all: what is left of an equal share is given to those who compute.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 160;
};

template <class S>
struct FlashShared {
  alignas(1024) std::byte keys[S::kStages][S::kStageBytes];
  alignas(1024) std::byte values[S::kStages][S::kStageBytes];
  alignas(1024) std::byte rows[S::kWarpgroups][S::kQueryBytes];  // Q, and the result on its way out
  troupe::cuda::Barrier keys_full[S::kStages], keys_empty[S::kStages];
  troupe::cuda::Barrier values_full[S::kStages], values_empty[S::kStages];
  int count;                               // sequences with work
  int first_unit[kFlashSequences + 1];     // of the i-th of them; the last entry counts all units
  std::int16_t sequence[kFlashSequences];  // its index
};

/// Named barriers: 0 is __syncthreads().
inline constexpr int kFlashOwnBarrier = 1;   // + warpgroup: its 128 threads
inline constexpr int kFlashTurnBarrier = 4;  // + warpgroup: its turn to issue

__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void announce(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Tells the compiler that an asynchronous product has just changed these.
template <int kCount>
__device__ __forceinline__ void changed(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  // Volatile: it stays on its side of the waits for asynchronous products.
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two numbers rounded to T in one register, the first in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  std::uint32_t packed;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// Four 8 × 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// Byte of (row, 16-byte chunk) in 64 rows of kHalves swizzled halves.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  return chunk / 8 * (64 * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

// ---- the plan

template <class S>
__device__ void make_flash_plan(const FlashArguments& a, FlashShared<S>& shared) {
  // Ends of the sequences while they are sorted; the ring's memory is free still.
  auto* const ends = reinterpret_cast<int*>(shared.keys);
  auto* const found = reinterpret_cast<std::int16_t*>(shared.keys[0] + kFlashSequences * sizeof(int));
  static_assert(sizeof(shared.keys) >= kFlashSequences * 6);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for (int s = int(threadIdx.x); s < a.count; s += S::kThreads) {
    if (a.sequences[s].tokens <= 1) continue;
    const int at = atomicAdd(&shared.count, 1);
    ends[at] = a.sequences[s].position;
    found[at] = static_cast<std::int16_t>(s);
  }
  __syncthreads();
  const int count = shared.count;
  for (int i = int(threadIdx.x); i < count; i += S::kThreads) {
    int rank = 0;
    for (int j = 0; j < count; ++j) {
      rank += ends[j] > ends[i] || (ends[j] == ends[i] && found[j] < found[i]);
    }
    const Sequence& s = a.sequences[found[i]];
    shared.sequence[rank] = found[i];
    shared.first_unit[rank + 1] = (s.tokens * a.group + S::kRows - 1) / S::kRows * a.kv_heads;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int i = int(threadIdx.x); i - int(threadIdx.x) < count; i += 32) {
      int units = i < count ? shared.first_unit[i + 1] : 0;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, units, d);
        if (int(threadIdx.x) >= d) units += other;
      }
      if (i < count) shared.first_unit[i + 1] = before + units;
      before += __shfl_sync(~0u, units, 31);
    }
    if (threadIdx.x == 0) shared.first_unit[0] = 0;
  }
  troupe::cuda::fence_proxy_async();  // the copy engine writes where `ends` were
  __syncthreads();
}

struct FlashUnit {
  const BlockId* blocks;
  int position;  // of the sequence's first token
  int tokens;
  int row;
  int kv_head;
  int first;     // packed row of the tile's first
  int stages;    // of keys
  int unmasked;  // stages before this one are seen whole by all rows
};

template <class S>
__device__ __forceinline__ FlashUnit flash_unit(const FlashArguments& a, const FlashShared<S>& shared,
                                                int unit) {
  int low = 0, high = shared.count;  // the last sequence whose first unit is not beyond `unit`
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (shared.first_unit[middle] <= unit ? low : high) = middle;
  }
  const Sequence& s = a.sequences[shared.sequence[low]];
  FlashUnit u;
  u.blocks = s.blocks;
  u.position = s.position;
  u.tokens = s.tokens;
  u.row = s.row;
  const int tiles = (s.tokens * a.group + S::kRows - 1) / S::kRows;
  const int index = unit - shared.first_unit[low];
  u.kv_head = index / tiles;
  u.first = (tiles - 1 - index % tiles) * S::kRows;
  const int first_token = u.first / a.group;
  const int last_token = min(s.tokens - 1, (u.first + S::kRows - 1) / a.group);
  u.stages = (s.position + last_token) / S::kKeys + 1;
  u.unmasked = (s.position + first_token + 1) / S::kKeys;
  return u;
}

/// The unit that this block takes in round k, there and back so that nobody always gets the longest.
__device__ __forceinline__ int flash_unit_of_round(int k) {
  const int b = int(blockIdx.x), n = int(gridDim.x);
  return k * n + (k % 2 == 0 ? b : n - 1 - b);
}

// ---- the copying warp

template <class S>
class FlashProducer {
 public:
  __device__ FlashProducer(const FlashArguments& a, FlashShared<S>& shared) : a_(a), shared_(shared) {}

  __device__ void run(const FlashUnit& u) {
    const int end = u.position + u.tokens;
    pages_ = (end + kBlockTokens - 1) / kBlockTokens;
    blocks_ = u.blocks;
    ids_from_ = -64;
    keys_ = a_.kv + a_.key_offset + std::size_t(u.kv_head) * S::kPageBytes;
    values_ = a_.kv + a_.value_offset + std::size_t(u.kv_head) * S::kPageBytes;
    copy_keys(0);
    for (int j = 0; j < u.stages; ++j) {
      if (j + 1 < u.stages) copy_keys(j + 1);
      copy_values(j, end);
    }
    done_ += u.stages;
  }

 private:
  /// Block of a page; pages are asked for in rising order. The whole warp calls it.
  __device__ BlockId block_of(int page) {
    const int lane = int(threadIdx.x % 32);
    if (page >= ids_from_ + 32) {
      const int from = page / 32 * 32;
      earlier_ = ids_;
      ids_ = from == ids_from_ + 32 ? next_ : id(from + lane);
      next_ = id(from + 32 + lane);
      ids_from_ = from;
    }
    return __shfl_sync(~0u, page >= ids_from_ ? ids_ : earlier_, page % 32);
  }
  __device__ BlockId id(int page) const { return page < pages_ ? blocks_[page] : 0; }

  __device__ void copy_keys(int j) {
    const int at = (done_ + j) % S::kStages;
    troupe::cuda::wait(&shared_.keys_empty[at], ((done_ + j) / S::kStages & 1) ^ 1);
    const int pages = min(S::kPages, pages_ - j * S::kPages);
    if (threadIdx.x % 32 == 0) {
      troupe::cuda::arrive_expect(&shared_.keys_full[at], std::uint32_t(pages * S::kPageBytes));
    }
#pragma unroll
    for (int p = 0; p < S::kPages; ++p) {
      if (p >= pages) break;
      const std::byte* from = keys_ + std::size_t(block_of(j * S::kPages + p)) * a_.block_bytes;
      if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int h = 0; h < S::kHalves; ++h) {
          troupe::cuda::copy_bulk(shared_.keys[at] + (h * S::kPages + p) * S::kHalfBytes,
                                  from + h * S::kHalfBytes, S::kHalfBytes, &shared_.keys_full[at]);
        }
      }
    }
  }

  /// Tokens from `end` on may hold anything, and 0 times anything has to be 0: they are not copied, but zero.
  __device__ void copy_values(int j, int end) {
    const int at = (done_ + j) % S::kStages, lane = int(threadIdx.x % 32);
    troupe::cuda::wait(&shared_.values_empty[at], ((done_ + j) / S::kStages & 1) ^ 1);
    const int tokens = min(S::kKeys, end - j * S::kKeys);
    if (tokens < S::kKeys) {
      for (int t = tokens; t < S::kKeys; ++t) {
        for (int c = lane; c < 8 * S::kHalves; c += 32) {
          const int at_half = (c / 8 * S::kPages + t / kBlockTokens) * S::kHalfBytes;
          *reinterpret_cast<uint4*>(shared_.values[at] + at_half + t % kBlockTokens * 128 + c % 8 * 16) =
              make_uint4(0, 0, 0, 0);
        }
      }
      troupe::cuda::fence_proxy_async();
      __syncwarp();
    }
    if (lane == 0) {
      troupe::cuda::arrive_expect(&shared_.values_full[at], std::uint32_t(tokens * S::kHalves * 128));
    }
#pragma unroll
    for (int p = 0; p < S::kPages; ++p) {
      const int bytes = min(kBlockTokens, tokens - p * kBlockTokens) * 128;
      if (bytes <= 0) break;
      const std::byte* from = values_ + std::size_t(block_of(j * S::kPages + p)) * a_.block_bytes;
      if (lane == 0) {
#pragma unroll
        for (int h = 0; h < S::kHalves; ++h) {
          troupe::cuda::copy_bulk(shared_.values[at] + (h * S::kPages + p) * S::kHalfBytes,
                                  from + h * S::kHalfBytes, std::uint32_t(bytes), &shared_.values_full[at]);
        }
      }
    }
  }

  const FlashArguments& a_;
  FlashShared<S>& shared_;
  const std::byte* keys_ = nullptr;
  const std::byte* values_ = nullptr;
  const BlockId* blocks_ = nullptr;
  int pages_ = 0;
  int ids_from_ = 0;  // this lane's ids_ is that of page ids_from_ + lane
  BlockId earlier_ = 0, ids_ = 0, next_ = 0;
  int done_ = 0;  // stages of earlier units
};

// ---- a computing warpgroup

template <class S>
class FlashConsumer {
 public:
  using T = typename S::T;
  static constexpr int kDim = S::kHeadDim;

  __device__ FlashConsumer(const FlashArguments& a, FlashShared<S>& shared)
      : a_(a), shared_(shared), me_(int(threadIdx.x) / 128 - 1), thread_(int(threadIdx.x) % 128) {
    // Warpgroup 0 has the first turn.
    if (S::kTakeTurns && me_ == S::kWarpgroups - 1) announce(kFlashTurnBarrier, 256);
  }

  __device__ void run(const FlashUnit& u) {
    load_queries(u);
    const int row = me_ * 64 + thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      limit_[i] = u.position + min(u.tokens - 1, (u.first + row + 8 * i) / a_.group);
      m_[i] = -INFINITY;
      sum_[i] = 0;
    }
    float o[kDim / 2];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
    float s[S::kKeys / 2];
    std::uint32_t p[S::kKeys / 16][4];
    float factor[2];

    troupe::cuda::wait(&shared_.keys_full[stage()], parity());
    wait_for_turn();
    scores(s, stage());
    pass_turn();
    troupe::cuda::wgmma_wait<0>();
    changed(s);
    release(shared_.keys_empty[stage()]);
    exponentials(s, factor, 0, u.unmasked);
    round(p, s);
    for (int j = 1; j < u.stages; ++j) {
      const int values_stage = stage(), values_parity = parity();
      ++done_;
      troupe::cuda::wait(&shared_.keys_full[stage()], parity());
      wait_for_turn();
      scores(s, stage());
      troupe::cuda::wait(&shared_.values_full[values_stage], values_parity);
      weigh(o, p, values_stage);
      pass_turn();
      troupe::cuda::wgmma_wait<1>();
      changed(s);
      release(shared_.keys_empty[stage()]);
      exponentials(s, factor, j, u.unmasked);
      finish(o, factor);
      release(shared_.values_empty[values_stage]);
      round(p, s);
    }
    troupe::cuda::wait(&shared_.values_full[stage()], parity());
    weigh(o, p, stage());
    troupe::cuda::wgmma_wait<0>();
    changed(o);
    release(shared_.values_empty[stage()]);
    ++done_;
    store(u, o);
  }

 private:
  __device__ int stage() const { return done_ % S::kStages; }
  __device__ std::uint32_t parity() const { return done_ / S::kStages & 1; }

  __device__ void wait_for_turn() const {
    if (S::kTakeTurns) meet(kFlashTurnBarrier + me_, 256);
  }
  __device__ void pass_turn() const {
    if (S::kTakeTurns) announce(kFlashTurnBarrier + (me_ + 1) % S::kWarpgroups, 256);
  }
  __device__ void release(troupe::cuda::Barrier& empty) const {
    if (thread_ % 32 == 0) troupe::cuda::arrive(&empty);
  }

  /// Global element of (packed row of this warpgroup, chunk of 8), or null beyond the sequence.
  template <class P>
  __device__ P* global_chunk(const FlashUnit& u, P* base, int row, int chunk) const {
    const int packed = u.first + me_ * 64 + row, token = packed / a_.group;
    if (token >= u.tokens) return nullptr;
    return base + std::size_t(u.row + token) * std::size_t(a_.row_stride) +
           (u.kv_head * a_.group + packed % a_.group) * kDim + chunk * 8;
  }

  __device__ void load_queries(const FlashUnit& u) {
    constexpr int kChunks = kDim / 8;
    uint4 chunks[kChunks / 2];
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int at = i * 128 + thread_;
      const T* from = global_chunk(u, static_cast<const T*>(a_.q), at / kChunks, at % kChunks);
      chunks[i] = from != nullptr ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int at = i * 128 + thread_;
      *reinterpret_cast<uint4*>(shared_.rows[me_] + swizzled_chunk(at / kChunks, at % kChunks)) = chunks[i];
    }
    troupe::cuda::fence_proxy_async();
    meet(kFlashOwnBarrier + me_, 128);
    if constexpr (S::kQueryRegisters) {
      // Matrices of an A operand: rows 0-7 and 8-15 of the warp's 16, then the same 8 columns on.
      const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane % 16;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        load_matrices(query_[k], troupe::cuda::shared_address(shared_.rows[me_]) +
                                     std::uint32_t(swizzled_chunk(row, 2 * k + lane / 16)));
      }
    }
  }

  /// S = Q · K^T, one group. K's page p has its half h at (h * kPages + p) * kHalfBytes, so that the
  /// pages' rows follow each other.
  __device__ void scores(float (&s)[S::kKeys / 2], int stage) {
    const std::uint64_t keys =
        troupe::cuda::swizzled_operand(troupe::cuda::shared_address(shared_.keys[stage]));
    const std::uint64_t queries =
        troupe::cuda::swizzled_operand(troupe::cuda::shared_address(shared_.rows[me_]));
    troupe::cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const std::uint64_t b =
          troupe::cuda::advanced(keys, std::uint32_t(k / 4 * S::kPages * S::kHalfBytes + k % 4 * 32));
      if constexpr (S::kQueryRegisters) {
        troupe::cuda::wgmma<T, S::kKeys>(s, query_[k], b, k > 0);
      } else {
        const std::uint64_t a =
            troupe::cuda::advanced(queries, std::uint32_t(k / 4 * (64 * 128) + k % 4 * 32));
        troupe::cuda::wgmma<T, S::kKeys>(s, a, b, k > 0);
      }
    }
    troupe::cuda::wgmma_commit();
  }

  /// O += P · V, one group.
  __device__ void weigh(float (&o)[kDim / 2], const std::uint32_t (&p)[S::kKeys / 16][4], int stage) {
    const std::uint64_t values = troupe::cuda::swizzled_operand(
        troupe::cuda::shared_address(shared_.values[stage]), 1024, S::kPages * S::kHalfBytes);
    troupe::cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
      troupe::cuda::wgmma<T, kDim, true>(o, p[k], troupe::cuda::advanced(values, std::uint32_t(k * 2048)),
                                         true);
    }
    troupe::cuda::wgmma_commit();
  }

  /// s becomes exp2(scale * s - m), 0 where the row does not see the key; what was summed with the m
  /// before has to be multiplied by `factor`.
  __device__ void exponentials(float (&s)[S::kKeys / 2], float (&factor)[2], int j, int unmasked) {
    if (j >= unmasked) {
      const int key = j * S::kKeys + thread_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < S::kKeys / 2; ++i) {
        if (key + i / 4 * 8 + i % 2 > limit_[i / 2 % 2]) s[i] = -INFINITY;
      }
    }
    float most[2] = {s[0], s[2]}, sum[4] = {};
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int d = 1; d <= 2; ++d) {
#pragma unroll
      for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], d));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = most[r] * a_.scale_log2, m = top > m_[r] + 8 ? top : m_[r];
      factor[r] = exp2_fast(m_[r] - m);
      m_[r] = m;
    }
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; ++i) {
      s[i] = exp2_fast(s[i] * a_.scale_log2 - m_[i / 2 % 2]);
      sum[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] = sum_[r] * factor[r] + (sum[2 * r] + sum[2 * r + 1]);
  }

  /// Waits for O's product and multiplies by `factor`. One wait in each branch: in the block of the
  /// exponentials the assembler would move it up before them.
  __device__ static void finish(float (&o)[kDim / 2], const float (&factor)[2]) {
    if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
      troupe::cuda::wgmma_wait<0>();
      changed(o);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i / 2 % 2];
    } else {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // wgmma_wait<0>() with a text of its own: not merged with the other
      asm volatile("wgmma.wait_group.sync.aligned 0; // no factor" ::: "memory");
#endif
      changed(o);
    }
  }

  /// Accumulators of two neighbouring groups of 8 keys are an A operand of 16.
  __device__ static void round(std::uint32_t (&p)[S::kKeys / 16][4], const float (&s)[S::kKeys / 2]) {
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack_pair<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  __device__ void store(const FlashUnit& u, const float (&o)[kDim / 2]) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[r] = 1 / sum;
    }
    // Through the memory of Q, which all of the warpgroup's products have read by now, for whole lines.
    meet(kFlashOwnBarrier + me_, 128);
    const int row = thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<std::uint32_t*>(shared_.rows[me_] + swizzled_chunk(row + 8 * r, i) +
                                          thread_ % 4 * 4) =
            pack_pair<T>(o[4 * i + 2 * r] * inverse[r], o[4 * i + 2 * r + 1] * inverse[r]);
      }
    }
    meet(kFlashOwnBarrier + me_, 128);
    // The same thread writes the next Q where it reads now.
    constexpr int kChunks = kDim / 8;
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int at = i * 128 + thread_;
      T* to = global_chunk(u, static_cast<T*>(a_.out), at / kChunks, at % kChunks);
      if (to == nullptr) continue;
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(shared_.rows[me_] + swizzled_chunk(at / kChunks, at % kChunks));
    }
  }

  const FlashArguments& a_;
  FlashShared<S>& shared_;
  const int me_, thread_;
  int done_ = 0;  // stages
  int limit_[2];  // last key that the thread's rows see
  float m_[2], sum_[2];
  std::uint32_t query_[S::kQueryRegisters ? kDim / 16 : 1][4];
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) flash_attention(const __grid_constant__ FlashArguments a) {
  extern __shared__ std::byte memory[];
  auto& shared =
      *reinterpret_cast<FlashShared<S>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      troupe::cuda::barrier_init(&shared.keys_full[i], 1);
      troupe::cuda::barrier_init(&shared.values_full[i], 1);
      troupe::cuda::barrier_init(&shared.keys_empty[i], 4 * S::kWarpgroups);
      troupe::cuda::barrier_init(&shared.values_empty[i], 4 * S::kWarpgroups);
    }
    troupe::cuda::fence_barrier_init();
  }
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  make_flash_plan(a, shared);
  const int units = shared.first_unit[shared.count];
  if (threadIdx.x < 128) {
    troupe::cuda::lower_registers<S::kProducerRegisters>();
    if (threadIdx.x < 32) {
      FlashProducer<S> producer(a, shared);
      int unit;
      for (int k = 0; k * int(gridDim.x) < units; ++k) {
        if ((unit = flash_unit_of_round(k)) < units) producer.run(flash_unit(a, shared, unit));
      }
    }
  } else {
    troupe::cuda::raise_registers<S::kConsumerRegisters>();
    FlashConsumer<S> consumer(a, shared);
    int unit;
    for (int k = 0; k * int(gridDim.x) < units; ++k) {
      if ((unit = flash_unit_of_round(k)) < units) consumer.run(flash_unit(a, shared, unit));
    }
  }
}

/// Lets the kernel run on the sequences of `a`, which have at most `rows` rows together.
template <class S>
void launch_flash(Cuda& device, const FlashArguments& a, int rows) {
  constexpr std::size_t kBytes = sizeof(FlashShared<S>) + 1024;
  static_assert(kBytes <= 227 * 1024);
  const long units = ((long(rows) * a.group + S::kRows - 1) / S::kRows + a.count) * a.kv_heads;
  const auto blocks =
      static_cast<unsigned>(units < device.multiprocessors() ? units : device.multiprocessors());
  troupe::cuda::allow_shared(flash_attention<S>, kBytes);
  troupe::cuda::launch(device, flash_attention<S>,
                       {.grid = dim3(blocks), .block = dim3(S::kThreads), .shared_bytes = kBytes}, a);
}

}  // namespace troupe::kernels::cuda
