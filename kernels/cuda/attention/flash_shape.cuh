#pragma once
// Sizes, arguments and shared memory of the kernel in flash.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/tma.cuh"

namespace troupe::kernels::cuda {

/// Sequences of one launch; more are done by several.
inline constexpr int kFlashSequences = 512;
/// With at most so many tiles their keys may be cut into pieces.
inline constexpr int kFlashCutTiles = 384;
/// … of which a block has at most about so many.
inline constexpr int kFlashRounds = 3;

struct FlashArguments {
  const void* q = nullptr;
  void* out = nullptr;
  const std::byte* kv = nullptr;
  std::size_t block_bytes = 0;
  std::size_t key_offset = 0;       ///< of the layer's first KV head in a block
  std::size_t value_offset = 0;     ///< likewise
  int row_stride = 0;               ///< elements, q and out
  int group = 0;                    ///< q heads of a KV head
  std::uint32_t group_inverse = 0;  ///< flash_inverse(group)
  int kv_heads = 0;
  float scale_log2 = 0;  ///< scale * log2(e)
  const SequenceRows* sequences = nullptr;
  int count = 0;                      ///< at most kFlashSequences
  float* partials = nullptr;          ///< of flash_most_pieces() pieces
  std::uint32_t* counters = nullptr;  ///< zero; zero again at the end
};

/// For token_of(): n / divisor is the upper half of n times this, while n * divisor < 2^32.
inline constexpr std::uint32_t flash_inverse(int divisor) {
  return divisor == 1 ? 0 : static_cast<std::uint32_t>((std::uint64_t{1} << 32) / std::uint32_t(divisor)) + 1;
}

/// kGroups computing warpgroups; kPageCount pages of 64 tokens a stage.
template <class Element, int kDim, int kGroups, int kPageCount, int kStageCount>
struct FlashShape {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kWarpgroups = kGroups;
  static constexpr int kPages = kPageCount;
  static constexpr int kStages = kStageCount;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kKeys = kBlockTokens * kPages;
  static constexpr int kHalves = kHeadDim / 64;
  static constexpr int kHalfBytes = kBlockTokens * 128;    // a page's 64 columns
  static constexpr int kPageBytes = kHalves * kHalfBytes;  // K or V of a page
  static constexpr int kStageBytes = kPages * kPageBytes;
  static constexpr int kQueryBytes = 64 * kHeadDim * 2;  // of one warpgroup
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  static constexpr int kLoaders = 64;  // threads that fetch Q
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kUnitReaders = 32 + kLoaders + kConsumers;  // all but the warp that takes units
  // Registers a thread, of 65536 in all: what is left of an equal share is given to those who compute.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 160;
  // What a warpgroup leaves of a piece of the keys: O, m and the sum of each row.
  static constexpr int kPartialFloats = (kHeadDim / 2 + 4) * 128;
  // Tiles of fewer stages of keys than this are never cut.
  static constexpr int kLeastPiece = 1024 / kKeys;
  // Stages that take as long as a piece's own expense, and the least a piece has.
  static constexpr int kPieceCost = 512 / kKeys;
};

/// A tile of queries and a range of its keys.
struct FlashUnit {
  const BlockId* blocks;
  int position;  // of the sequence's first token
  int tokens;
  int row;
  int kv_head;
  int first;          // packed row of the tile's first
  int begin, end;     // stages of keys; end 0: there is no more work
  int unmasked;       // stages before this one are seen whole by all rows
  int tile;           // counts the tiles of the launch
  int piece, pieces;  // of the tile's keys
  int partial;        // where the tile's first piece leaves its results
};

/// A unit is known before the one in front of it is finished, so that its pages and queries can be fetched.
inline constexpr int kFlashUnits = 3;
inline constexpr int kFlashQueries = 2;

template <class S>
struct FlashShared {
  alignas(1024) std::byte keys[S::kStages][S::kStageBytes];
  alignas(1024) std::byte values[S::kStages][S::kStageBytes];
  alignas(
      1024) std::byte rows[kFlashQueries][S::kWarpgroups][S::kQueryBytes];  // Q, then the result going out
  troupe::cuda::Barrier keys_full[S::kStages], keys_empty[S::kStages];
  troupe::cuda::Barrier values_full[S::kStages], values_empty[S::kStages];
  troupe::cuda::Barrier unit_known[kFlashUnits], unit_done[kFlashUnits], unit_wanted;
  troupe::cuda::Barrier queries_full[kFlashQueries], queries_empty[kFlashQueries];
  FlashUnit unit[kFlashUnits];
  BlockId first_blocks[kFlashUnits][32];  // of the unit's first page's 32 pages
  int last[S::kWarpgroups];  // whether the warpgroup's piece is the last of its tile to be finished
  // The plan.
  int count;                   // sequences with work
  int cut;                     // whether first_piece decides
  int units;                   // pieces, or tiles where not cut
  int all, longest, shortest;  // stages of the tiles
  int round_pieces[kFlashRounds], round_longest[kFlashRounds];
  int first_tile[kFlashSequences + 1];  // of the i-th sequence with work; the last entry counts all
  SequenceRows sequence[kFlashSequences];   // likewise
  int first_piece[kFlashCutTiles + 1];  // of a tile
};

/// Token of a packed row.
__device__ __forceinline__ int token_of(const FlashArguments& a, int packed) {
  return a.group_inverse == 0 ? packed : int(__umulhi(unsigned(packed), a.group_inverse));
}

/// Byte of (row, 16-byte chunk) in 64 rows of swizzled halves.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  return chunk / 8 * (64 * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

/// Element of q and out where a packed row of a tile and a chunk of 8 columns begin; below 0 beyond the
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
