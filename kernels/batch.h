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
/// tokens 0, rows with slots[r].block == kPaddingBlock; the Cpu is never given any.
struct Batch {
  const SequenceRows* sequences = nullptr;  ///< (count), rising `row`, covering [0, rows)
  const KvSlot* slots = nullptr;        ///< (rows)
  std::int32_t count = 0;
  std::int32_t rows = 0;
};

/// KV memory: kv[block][layer][k|v][kv_head][64 tokens × head_dim], so that a block is one contiguous
/// piece. The order inside the last two is the device's:
///   Cpu: K is a packed Matrix of 64 outputs (tokens) and head_dim inputs, V one of head_dim outputs
///   and 64 inputs (tokens); attention is the linear ops' inner product on them.
///   Cuda: kernels/cuda/product/layout.h.
struct KvCache {
  void* data = nullptr;  ///< blocks × block_bytes(), zeroed before first use
  DType dtype = DType::bf16;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;  ///< even

  constexpr std::size_t key_bytes() const { return matrix_bytes(dtype, kBlockTokens, head_dim); }
  constexpr std::size_t value_bytes() const { return matrix_bytes(dtype, head_dim, kBlockTokens); }
  constexpr std::size_t layer_bytes() const { return std::size_t(kv_heads) * (key_bytes() + value_bytes()); }
  constexpr std::size_t block_bytes() const { return std::size_t(layers) * layer_bytes(); }

  constexpr std::size_t key_offset(BlockId block, int layer, int kv_head) const {
    return std::size_t(block) * block_bytes() + std::size_t(layer) * layer_bytes() +
           std::size_t(kv_head) * key_bytes();
  }
  constexpr std::size_t value_offset(BlockId block, int layer, int kv_head) const {
    return std::size_t(block) * block_bytes() + std::size_t(layer) * layer_bytes() +
           std::size_t(kv_heads) * key_bytes() + std::size_t(kv_head) * value_bytes();
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
