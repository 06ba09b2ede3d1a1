#pragma once
// Sizes, arguments and shared memory of the prefill attention kernel (flash.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda {

/// Sequences per launch; a larger batch takes several launches.
inline constexpr int kFlashSequences = 512;

struct FlashArguments {
  const void* q = nullptr;
  void* out = nullptr;
  const std::byte* kv = nullptr;
  std::size_t block_bytes = 0;
  std::size_t key_offset = 0;       ///< bytes from a KV block's start to the layer's first KV head
  std::size_t value_offset = 0;     ///< likewise
  int row_stride = 0;               ///< elements, q and out
  int group = 0;                    ///< q heads of a KV head
  std::uint32_t group_inverse = 0;  ///< flash_inverse(group)
  int kv_heads = 0;
  float scale_log2 = 0;  ///< scale * log2(e)
  const SequenceRows* sequences = nullptr;
  int count = 0;                      ///< at most kFlashSequences
  float* partials = nullptr;          ///< flash_partial_bytes(): flash_max_pieces() partial results
  std::uint32_t* counters = nullptr;  ///< zero before and after the kernel
};

/// For token_of(): n / divisor is the upper half of n times this, as long as n * divisor < 2^32.
inline constexpr std::uint32_t flash_inverse(int divisor) {
  return divisor == 1 ? 0 : static_cast<std::uint32_t>((std::uint64_t{1} << 32) / std::uint32_t(divisor)) + 1;
}

/// kGroups consumer warpgroups; kPageCount pages of 64 tokens per stage. kSkips: Attention::first is 1.
template <class Element, int kDim, int kGroups, int kPageCount, int kStageCount, bool kSkips>
struct FlashShape {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr bool kSkipsFirst = kSkips;
  static constexpr int kWarpgroups = kGroups;
  static constexpr int kPages = kPageCount;
  static constexpr int kStages = kStageCount;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kKeys = kBlockTokens * kPages;
  static constexpr int kHalves = kHeadDim / 64;
  static constexpr int kHalfBytes = kBlockTokens * 128;    // 64 columns of a page
  static constexpr int kPageBytes = kHalves * kHalfBytes;  // K or V of a page
  static constexpr int kStageBytes = kPages * kPageBytes;
  static constexpr int kQueryBytes = 64 * kHeadDim * 2;  // of one warpgroup
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  static constexpr int kLoaders = 64;  // threads that fetch Q
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kUnitReaders =
      32 + kLoaders + kConsumers;  // all threads except the warp that takes units
  // Registers per thread, out of 65536 per block: producers give up registers to consumers.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 160;
  // A warpgroup's partial result for a piece of the keys: O, m and the sum of each row.
  static constexpr int kPartialFloats = (kHeadDim / 2 + 4) * 128;
  // Tiles are never cut if the longest has fewer stages of keys than this.
  static constexpr int kMinStagesToCut = 1024 / kKeys;
  // The fixed cost of a piece, in stages that take the same time; also the minimum length of a piece.
  static constexpr int kPieceOverhead = 512 / kKeys;
};

/// A tile of queries and a range of its keys.
struct FlashUnit {
  const BlockId* blocks;
  int position;  // of the sequence's first token
  int tokens;
  int row;
  int kv_head;
  int first;          // packed index of the tile's first row
  int begin, end;     // stages of keys; end 0: there is no more work
  int unmasked;       // all rows see all keys of the stages before this one
  int tile;           // index among the tiles of the launch
  int piece, pieces;  // index and number of the pieces of the tile's keys
  int partial;        // index of the partial result of the tile's first piece
};

/// The next unit is taken before the current one is finished, so that its pages and queries can be copied.
inline constexpr int kFlashUnitSlots = 3;
inline constexpr int kFlashQuerySlots = 2;

template <class S>
struct FlashShared {
  alignas(1024) std::byte keys[S::kStages][S::kStageBytes];
  alignas(1024) std::byte values[S::kStages][S::kStageBytes];
  alignas(1024)
      std::byte rows[kFlashQuerySlots][S::kWarpgroups][S::kQueryBytes];  // Q, then the rows of the result
  ptx::Barrier keys_full[S::kStages], keys_empty[S::kStages];
  ptx::Barrier values_full[S::kStages], values_empty[S::kStages];
  ptx::Barrier unit_ready[kFlashUnitSlots], unit_free[kFlashUnitSlots], unit_requested;
  ptx::Barrier queries_full[kFlashQuerySlots], queries_empty[kFlashQuerySlots];
  FlashUnit unit[kFlashUnitSlots];
  BlockId first_blocks[kFlashUnitSlots][32];  // block ids of the 32 pages that contain the unit's first page
  int last[S::kWarpgroups];  // true: the warpgroup's piece is the last of its tile to be finished
  // The plan.
  int count;                   // sequences with work
  int cut;                     // nonzero: tiles are cut; first_piece maps units to tiles
  int units;                   // number of pieces, or of tiles if they are not cut
  int all, longest, shortest;  // stages of all tiles together, of the longest and of the shortest
  int round_pieces[kFlashRounds], round_longest[kFlashRounds];
  int first_tile[kFlashSequences +
                 1];  // index of the first tile of the i-th sequence with work; then their total
  SequenceRows sequence[kFlashSequences];  // the i-th sequence with work
  int first_piece[kFlashCutTiles + 1];     // index of a tile's first piece; then their total
};

/// Token of a packed row.
__device__ __forceinline__ int token_of(const FlashArguments& a, int packed) {
  return a.group_inverse == 0 ? packed : int(__umulhi(unsigned(packed), a.group_inverse));
}

/// Byte offset of (row, 16-byte chunk) in 64 rows of Q, stored as swizzled halves of 64 columns.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  return chunk / 8 * (64 * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

/// Index in q and out of the first element of (row of the tile, chunk of 8 columns); negative past the
/// sequence's end.
template <class S>
__device__ __forceinline__ std::ptrdiff_t global_chunk(const FlashArguments& a, const FlashUnit& u, int row,
                                                       int chunk) {
  const int packed = u.first + row, token = token_of(a, packed);
  if (token >= u.tokens) return -1;
  return std::ptrdiff_t(u.row + token) * a.row_stride +
         (u.kv_head * a.group + packed - token * a.group) * S::kHeadDim + chunk * 8;
}

}  // namespace troupe::kernels::cuda
