#pragma once
// What the warps of a decode attention block know of each other: sizes, the ring in shared memory, and what a
// stage of it holds. decode_block.cuh says how the block works.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_schedule.cuh"
#include "kernels/cuda/tma.cuh"

namespace troupe::kernels::cuda::decode {

using troupe::cuda::Barrier;

constexpr int kGroup = 8;  // columns of the product: the most q heads of a KV head
constexpr int kConsumers = 4;
constexpr int kConsumerThreads = 32 * kConsumers;
constexpr int kThreads = kConsumerThreads + 32;
constexpr int kBlocksPerMultiprocessor = 2;
/// Up to so many sequences one block a multiprocessor is faster: fewer partial results, and the next kernel's
/// blocks find room before these are done. With more work it is not, as a step shows and this kernel alone
/// does not: while the kernel before ends, two blocks may be put on a multiprocessor that is free early and
/// none on another.
constexpr int kFewSequences = 8;

struct DecodeArgs {
  void* out;
  const void* q;
  const std::byte* kv;
  std::size_t block_bytes;
  std::size_t key_offset, value_offset;  // of block 0, KV head 0
  const SequenceRows* sequences;
  float* partials;
  std::uint32_t* counters;
  int count, rows;
  int kv_heads, group;
  int row_elements;  // of q and out
  float scale_log2;
  DecodeRows mode;
  bool teams;    // clusters of kTeam blocks
  bool settled;  // Attention::settled, for single rows only: pages may be fetched before the wait
};

/// What a stage holds; written by the producer before the stage is full.
struct __align__(16) PageNote {
  int tokens;  // 1 … 64; 0: no more work, and the rest is the TeamItem
  int first;   // of its part: q comes with it
  int last;    // of its part
  int row;
  int kv_head;
  int slot;
  int first_block;
  int parts;  // of the item; TeamItem::pages
};

/// A partial result: O[kGroup][head_dim] relative to the maximum, then (maximum, sum)[kGroup].
constexpr int partial_floats(int head_dim) { return kGroup * head_dim + 2 * kGroup; }

template <int kHeadDim>
struct DecodeLayout {
  static constexpr int kPieceBytes = kBlockTokens * kHeadDim * 2;
  static constexpr int kQStride = kHeadDim * 2 + 16;  // bytes; ldmatrix finds eight rows in eight banks
  static constexpr int kOStride = kHeadDim + 4;       // floats; the same for the merge's stores
  static constexpr int kStages = kHeadDim == 64 ? 6 : 3;
  static constexpr unsigned kGatheredBytes = kHeadDim * sizeof(float) + sizeof(float2);  // from one block
  struct __align__(128) Stage {
    std::byte k[kPieceBytes];
    std::byte v[kPieceBytes];
  };
  struct Shared {
    Stage stage[kStages];
    std::byte q[kStages][kGroup * kQStride];
    PageNote note[kStages];
    Barrier full[kStages];
    Barrier empty[kStages];
    float2 stats[kConsumers][kGroup];  // a merge's maxima and sums
    int arrived;
    // Of the head that this block of a cluster finishes: from each block of it O and (maximum, sum).
    Barrier gathered;
    float gathered_o[kTeam][kHeadDim];
    float2 gathered_stats[kTeam];
  };
  static_assert(sizeof(Stage) >= kConsumers * kGroup * kOStride * sizeof(float));
};

__device__ __forceinline__ void meet_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
}

}  // namespace troupe::kernels::cuda::decode
