#pragma once
// The rows of one step, and the paged KV memory they read and write.
//
// A batch is a list of sequences, each with `tokens` consecutive positions to compute: 1 when it decodes,
// more for a prefill chunk. The batch's rows are the sequences' tokens in order, so that every matrix product
// covers all rows at once and only attention distinguishes sequences.
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "gpu/dtype.h"
#include "kernels/kv_format.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

inline constexpr int kBlockTokens = 64;

/// The block of a padding row, which only fills a batch up to a size for which a CUDA graph was captured. Its
/// results are meaningless, it writes no key or value, and its sequence has 0 tokens.
inline constexpr BlockId kPaddingBlock = -1;

/// Tokens [position, position + tokens) of one sequence; their rows start at `row`. Keys and values of
/// all positions before `position` are in the blocks already. Position p lies in blocks[p / 64].
struct SequenceRows {
  const BlockId* blocks = nullptr;  ///< at least (position + tokens + 63) / 64 entries; device memory
  std::int32_t position = 0;
  std::int32_t tokens = 0;
  std::int32_t row = 0;
};

/// The slot in KV memory for a row's own key and value.
struct KvSlot {
  BlockId block = 0;
  std::int32_t offset = 0;  ///< in the block, 0 … 63
};

/// All arrays in device memory. Two sequences never write the same block. Padding comes last: sequences with
/// tokens 0, rows with slots[r].block == kPaddingBlock. With most_tokens, sequences without tokens may stand
/// anywhere, and padding rows between a sequence's tokens and the next sequence's row. The Cpu is never given
/// any padding.
struct Batch {
  const SequenceRows* sequences = nullptr;  ///< (count), rising `row`, covering [0, rows) but for padding
  const KvSlot* slots = nullptr;            ///< (rows)
  std::int32_t count = 0;
  std::int32_t rows = 0;
  std::int32_t most_tokens = 0;  ///< no sequence has more tokens; 0: not known
};

/// KV memory: kv[block][layer][k|v][kv_head], so that a block is one contiguous piece. A piece of K or V is
/// 64 tokens × head_dim (padded to 32), of an 8-bit format followed by 64 floats: the scales of its tokens.
/// How codes and scales are made: quantize_kv.h. The order of the 64 × head_dim is the device's:
///   Cpu: K is a packed Matrix of 64 outputs (tokens) and head_dim inputs, V one of head_dim outputs
///   and 64 inputs (tokens); attention is the linear ops' inner product on them. Codes: of both, panels of 32
///   outputs that lie side by side for each input, as in a packed f32 matrix.
///   Cuda: kernels/cuda/product/layout.h.
/// With `ids` its 64 tokens' ids follow: they are where their keys and values are, also
/// after a copy or in the swap space.
struct KvCache {
  void* data = nullptr;  ///< blocks × block_bytes(), zeroed before first use
  DType dtype =
      DType::bf16;  ///< of the queries and outputs of attention, and of K and V if the format is plain
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;  ///< even
  KvFormat format = KvFormat::plain;
  bool ids = false;
  std::size_t tail = 0;  ///< bytes at the end of a block, after everything else; a multiple of 64

  constexpr bool quantised() const { return format != KvFormat::plain; }
  /// Elements of a K or V piece.
  constexpr std::size_t piece_elements() const {
    return std::size_t(kBlockTokens) * std::size_t(padded(head_dim));
  }
  /// Bytes of a K or V piece without its scales, which follow.
  constexpr std::size_t code_bytes() const { return piece_elements() * (quantised() ? 1 : size_of(dtype)); }
  constexpr std::size_t scale_bytes() const { return quantised() ? kBlockTokens * sizeof(float) : 0; }
  constexpr std::size_t piece_bytes() const { return code_bytes() + scale_bytes(); }
  constexpr std::size_t layer_bytes() const { return std::size_t(kv_heads) * 2 * piece_bytes(); }
  constexpr std::size_t id_offset() const { return std::size_t(layers) * layer_bytes(); }  ///< in a block
  constexpr std::size_t block_bytes() const {
    return id_offset() + (ids ? kBlockTokens * sizeof(TokenId) : 0) + tail;
  }

  constexpr std::size_t tail_offset() const { return block_bytes() - tail; }  ///< in a block

  constexpr std::size_t key_offset(BlockId block, int layer, int kv_head) const {
    return std::size_t(block) * block_bytes() + std::size_t(layer) * layer_bytes() +
           std::size_t(kv_head) * piece_bytes();
  }
  constexpr std::size_t value_offset(BlockId block, int layer, int kv_head) const {
    return key_offset(block, layer, kv_heads + kv_head);
  }

  /// A plain cache of one layer with the same heads, in which row r of a step has token r % 64 of block r /
  /// 64: K and V wait there to be quantised.
  constexpr KvCache unquantised(void* memory) const {
    return {.data = memory, .dtype = dtype, .layers = 1, .kv_heads = kv_heads, .head_dim = head_dim};
  }
  /// Bytes of unquantised() for so many rows; 0 for a plain cache.
  constexpr std::size_t unquantised_bytes(int rows) const {
    return quantised()
               ? std::size_t((rows + kBlockTokens - 1) / kBlockTokens) * unquantised(nullptr).block_bytes()
               : 0;
  }
};

/// Fills the (rows) arrays of a batch from its sequences; host memory. `positions` feeds RopeTable.
inline void describe_rows(const SequenceRows* sequences, int count, KvSlot* slots, std::int32_t* positions) {
  for (int s = 0; s < count; ++s) {
    const SequenceRows& sequence = sequences[s];
    for (std::int32_t t = 0; t < sequence.tokens; ++t) {
      const std::int32_t position = sequence.position + t;
      positions[sequence.row + t] = position;
      slots[sequence.row + t] = {sequence.blocks[position / kBlockTokens], position % kBlockTokens};
    }
  }
}

}  // namespace troupe::kernels
