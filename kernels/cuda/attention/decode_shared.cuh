#pragma once
// Sizes, parameters and shared memory of a decode attention block. decode_block.cuh describes the algorithm.
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_schedule.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::decode {

using ptx::Barrier;

constexpr int kMaxGroup = 8;   // q heads per KV head at most: the columns of a product
constexpr int kConsumers = 4;  // warps
constexpr int kConsumerThreads = 32 * kConsumers;
constexpr int kThreads = kConsumerThreads + 32;
constexpr int kBlocksPerMultiprocessor = 2;

struct DecodeArgs {
  void* out;
  const void* q;
  const std::byte* kv;
  std::size_t block_bytes;
  std::size_t key_offset, value_offset;  // bytes; of KV block 0, KV head 0
  const SequenceRows* sequences;
  float* partials;
  std::uint32_t* counters;
  int count, rows;
  int kv_heads, group;
  int row_elements;  // of q and out
  float scale_log2;
  DecodeRows mode;
  const int* sequences_left;  // see run_decode_attention()
  bool clusters;              // the kernel runs in clusters of kClusterBlocks blocks
  bool settled;  // Attention::settled and DecodeRows::single: pages may be copied before the wait
};

/// Describes the page in a stage. The producer writes it before the stage is full.
struct __align__(16) PageInfo {
  int tokens;  // 1 … 64; 0: no more work, and the other fields describe the ClusterItem
  int first;   // nonzero on a part's first page: q comes with it
  int last;    // nonzero on a part's last page
  int row;
  int kv_head;
  int slot;         // DecodePart::slot
  int first_block;  // the block that has the item's first page
  int parts;        // of the item; if tokens is 0: ClusterItem::pages
};

/// Floats of a partial result: O[kMaxGroup][head_dim] relative to the maximum, then (maximum,
/// sum)[kMaxGroup].
constexpr int partial_floats(int head_dim) { return kMaxGroup * head_dim + 2 * kMaxGroup; }

template <int kHeadDim, KvFormat kFormat>
struct DecodeLayout {
  static constexpr bool kCodes = kFormat != KvFormat::plain;
  static constexpr int kTokenBytes = kHeadDim * (kCodes ? 1 : 2);   // of K or V in KV memory
  static constexpr int kScalesOffset = kBlockTokens * kTokenBytes;  // of 8-bit K or V in its piece
  static constexpr int kScaleBytes = kCodes ? kBlockTokens * int(sizeof(float)) : 0;
  static constexpr int kPieceBytes = kScalesOffset + kScaleBytes;
  static constexpr int kQStride =
      kHeadDim * 2 + 16;                         // bytes; ldmatrix reads eight rows without bank conflicts
  static constexpr int kOStride = kHeadDim + 4;  // floats; likewise for the merge's stores
  static constexpr int kStages = kCodes ? (kHeadDim == 64 ? 10 : 5) : kHeadDim == 64 ? 6 : 3;
  static constexpr unsigned kGatheredBytes = kHeadDim * sizeof(float) + sizeof(float2);  // from one block
  struct __align__(128) Stage {
    std::byte k[kPieceBytes];
    std::byte v[kPieceBytes];
  };
  struct Shared {
    Stage stage[kStages];
    std::byte q[kStages][kMaxGroup * kQStride];
    PageInfo info[kStages];
    Barrier full[kStages];
    Barrier empty[kStages];
    float2 stats[kConsumers][kMaxGroup];  // maximum and sum per warp and head, for the merge
    int arrived;
    // In a cluster, the head that this block finishes: O and (maximum, sum) from each block of the cluster.
    Barrier gathered;
    float gathered_o[kClusterBlocks][kHeadDim];
    float2 gathered_stats[kClusterBlocks];
  };
  static_assert(sizeof(Stage) >= kConsumers * kMaxGroup * kOStride * sizeof(float));
};

template <int kFloats>
struct __align__(4 * kFloats) Floats {
  static constexpr int kSize = kFloats;
  float v[kFloats];
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) v[i] *= factor;
  }
  __device__ void add_scaled(float factor, const Floats& addend) {
#pragma unroll
    for (int i = 0; i < kFloats; ++i) v[i] += factor * addend.v[i];
  }
  /// Loads the lane's elements of a row that other blocks have written; bypasses the L1 cache.
  __device__ void load(const float* row, int lane) {
    if constexpr (kFloats == 4) {
      const float4 f = __ldcg(reinterpret_cast<const float4*>(row) + lane);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      static_assert(kFloats == 2);
      const float2 f = __ldcg(reinterpret_cast<const float2*>(row) + lane);
      v[0] = f.x, v[1] = f.y;
    }
  }
};

__device__ __forceinline__ void sync_consumers() { ptx::barrier_sync<1, kConsumerThreads>(); }

}  // namespace troupe::kernels::cuda::decode
