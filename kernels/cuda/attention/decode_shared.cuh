#pragma once
// Sizes, parameters and shared memory of a decode attention block. decode_block.cuh describes the algorithm.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_schedule.cuh"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::decode {

using ptx::Barrier;

constexpr int kMaxGroup = 8;   // q heads per KV head at most: the columns of a product
constexpr int kConsumers = 4;  // warps of a team; each has a quarter of a page's tokens

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
  bool settled;  // Attention::settled and not DecodeRows::all: pages may be copied before the wait
  // For FewLayout:
  int most_tokens;  // of a sequence that decodes
  int pass_tokens;  // DecodeGrid::pass_tokens
  int first;        // Attention::first
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

/// What a page's item adds to PageInfo if it has several tokens.
struct __align__(16) FewInfo {
  int visible;  // tokens of the page that the item's first token sees, and each later token one more; below 1
                // or above 64: none or all
  int tokens;   // of the item
  int begin;    // tokens before this one of the page are not attended to
  int queries;  // the slot of the item's q
};

/// Floats of a partial result: O[columns][head_dim] relative to the maximum, then (maximum, sum)[columns].
constexpr int partial_floats(int head_dim, int columns) { return columns * head_dim + 2 * columns; }

template <int kDimensions, KvFormat kKvFormat>
struct PageLayout {
  static constexpr int kHeadDim = kDimensions;
  static constexpr KvFormat kFormat = kKvFormat;
  static constexpr bool kCodes = kFormat != KvFormat::plain;
  static constexpr int kTokenBytes = kHeadDim * (kCodes ? 1 : 2);   // of K or V in KV memory
  static constexpr int kScalesOffset = kBlockTokens * kTokenBytes;  // of 8-bit K or V in its piece
  static constexpr int kScaleBytes = kCodes ? kBlockTokens * int(sizeof(float)) : 0;
  static constexpr int kPieceBytes = kScalesOffset + kScaleBytes;
  static constexpr int kQStride =
      kHeadDim * 2 + 16;                         // bytes; ldmatrix reads eight rows without bank conflicts
  static constexpr int kOStride = kHeadDim + 4;  // floats; likewise for the merge's stores
  static constexpr unsigned kGatheredBytes =
      kHeadDim * sizeof(float) + sizeof(float2);  // of a column, from one block
  struct __align__(128) Stage {
    std::byte k[kPieceBytes];
    std::byte v[kPieceBytes];
  };
  // Four warps' results of kMaxGroup columns.
  static constexpr int kMergedBytes = kConsumers * kMaxGroup * kOStride * int(sizeof(float));
  static_assert(sizeof(Stage) >= kMergedBytes);
};

/// Items of one token: the columns are the q heads of a KV head. kSmall: two blocks fit a multiprocessor that
/// has 164 KiB of shared memory, and one fits 100 KiB.
template <int kDimensions, KvFormat kKvFormat, bool kSmall = false>
struct DecodeLayout : PageLayout<kDimensions, kKvFormat> {
  using P = PageLayout<kDimensions, kKvFormat>;
  using P::kCodes, P::kHeadDim, P::kQStride;
  using Stage = typename P::Stage;
  static constexpr bool kFew = false;
  static constexpr int kTiles = 1, kTeams = 1;
  static constexpr int kColumns = kMaxGroup;
  static constexpr int kConsumerThreads = 32 * kConsumers;
  static constexpr bool kGivesRegisters = false;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr bool kHoldsQueries = true, kHoldsValues = true;
  static constexpr int kStages = kSmall   ? int((68u << 10) / sizeof(Stage))
                                 : kCodes ? (kHeadDim == 64 ? 10 : 5)
                                          : (kHeadDim == 64 ? 6 : 3);
  static constexpr int kQuerySlots = kStages;  // the slot of a part's q is the stage of its first page
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
};

/// Items of several tokens: the columns are (token, q head), token by token. A warp has kTileCount products
/// of 8 columns for each fragment of K and V that it loads. kTeamCount teams of warps read the same stage,
/// each for columns of its own.
template <int kDimensions, KvFormat kKvFormat, int kTileCount, int kTeamCount, int kBlockCount>
struct FewLayout : PageLayout<kDimensions, kKvFormat> {
  using P = PageLayout<kDimensions, kKvFormat>;
  using P::kHeadDim, P::kMergedBytes, P::kQStride;
  using Stage = typename P::Stage;
  static constexpr bool kFew = true;
  static constexpr int kTiles = kTileCount, kTeams = kTeamCount;
  static constexpr int kColumns = kMaxGroup * kTiles * kTeams;
  static constexpr int kConsumerThreads = 32 * kConsumers * kTeams;
  static constexpr int kBlocksPerMultiprocessor = kBlockCount;
  // Three teams and a producer leave a thread 128 registers. Four producer warps, of which one works, can
  // give theirs to the consumers.
  static constexpr bool kGivesRegisters = kTeams == 3;
  static constexpr int kConsumerRegisters = 144, kProducerRegisters = 80;
  static constexpr int kThreads = kConsumerThreads + (kGivesRegisters ? 128 : 32);
  // Where registers are short, q comes from shared memory with every page, and V when it is multiplied.
  static constexpr bool kHoldsQueries = !kGivesRegisters, kHoldsValues = !kGivesRegisters;
  static constexpr int kQuerySlots = kHoldsQueries ? 1 : 2;
  static constexpr int kMostStages = 10;
  struct MergesInStage {};  // the last page's
  struct MergesApart {
    alignas(16) std::byte merged[kTeams][kMergedBytes];
  };
  /// All but the stages.
  struct Rest : std::conditional_t<kTeams == 1, MergesInStage, MergesApart> {
    alignas(16) std::byte q[kQuerySlots][kColumns * kQStride];
    // Column c of a cluster's item is finished by block c % 8: O and (maximum, sum) from each block.
    alignas(16) float gathered_o[kTiles * kTeams][kClusterBlocks][kHeadDim];
    float2 gathered_stats[kTiles * kTeams][kClusterBlocks];
    float2 stats[kTeams][kConsumers][kMaxGroup];
    PageInfo info[kMostStages];
    FewInfo few[kMostStages];
    Barrier full[kMostStages];
    Barrier empty[kMostStages];
    Barrier queries_empty[kQuerySlots];
    Barrier gathered;
    int arrived;
  };
  static constexpr int kBytes = (kBlocksPerMultiprocessor == 1 ? 227 : 228 / kBlocksPerMultiprocessor - 1) *
                                1024;  // of Shared, at most
  static constexpr int kStages =
      std::min(kMostStages, (kBytes - int(sizeof(Rest)) - 128) / int(sizeof(Stage)));
  static_assert(kStages >= 3);
  struct Shared : Rest {
    Stage stage[kStages];
  };
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

/// Launches the kernel for items of one token with a ring for GPUs with less shared memory than Hopper's.
void launch_small(Cuda& device, const KvCache& kv, const DecodeArgs& parameters, const DecodeGrid& grid);
/// Launches the kernel for items of several tokens that `grid` names.
void launch_few(Cuda& device, const KvCache& kv, const DecodeArgs& parameters, const DecodeGrid& grid);

}  // namespace troupe::kernels::cuda::decode
