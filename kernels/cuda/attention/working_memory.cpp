#include "kernels/cuda/attention/working_memory.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "gpu/buffer.h"
#include "kernels/cuda/scratch.h"

namespace troupe::kernels::cuda {

AttentionShape shape_of(const Attention& op) {
  return {.dtype = op.kv.dtype,
          .kv = op.kv.format,
          .heads = op.heads,
          .kv_heads = op.kv.kv_heads,
          .head_dim = op.kv.head_dim,
          .rows = op.batch.rows,
          .sequences = op.batch.count,
          .most_tokens = op.batch.most_tokens,
          .first = op.first};
}

namespace {

/// DecodeGrid::pass_tokens of sequences of up to `most` tokens.
int pass_tokens(int most, const Attention& op, const GpuTraits& gpu) {
  const int fitting = kFewKernels[0].columns * op.kv.kv_heads / op.heads;
  const int passes = (most + fitting - 1) / fitting;
  const auto items = std::int64_t{op.batch.count} * op.kv.kv_heads * passes * (passes - 1);
  return items <= kMostPassItems * gpu.multiprocessors ? std::min(most, fitting) : most;
}

}  // namespace

DecodeGrid decode_grid(DecodeRows rows, const Attention& op, const GpuTraits& gpu) {
  DecodeGrid grid;
  int most_blocks = gpu.block_shared_bytes >= kTwoSmallDecodeBytes ? kDecodeBlocksPerMultiprocessor : 1;
  int passes = 1;
  if (rows == DecodeRows::few || op.first > 0) {
    if (rows == DecodeRows::few) {
      grid.pass_tokens = pass_tokens(op.batch.most_tokens, op, gpu);
      passes = (op.batch.most_tokens + grid.pass_tokens - 1) / grid.pass_tokens;
    }
    const int columns = op.heads / op.kv.kv_heads * grid.pass_tokens;
    const auto* const kernel = std::find_if(std::begin(kFewKernels), std::end(kFewKernels),
                                            [&](const FewKernel& k) { return columns <= k.columns; });
    grid.few_kernel = int(kernel - kFewKernels);
    grid.columns = kernel->columns;
    most_blocks = kernel->blocks_per_multiprocessor;
  }
  const bool few_sequences = rows != DecodeRows::all && op.batch.count * passes <= kDecodeFewSequences;
  // Blocks that fill a multiprocessor are no clusters: the GPU may not have room for all of them at once.
  grid.clusters =
      gpu.features.clusters && few_sequences && most_blocks > 1 && gpu.multiprocessors >= kDecodeCluster;
  grid.blocks = grid.clusters ? gpu.multiprocessors / kDecodeCluster * kDecodeCluster
                              : (few_sequences ? 1 : most_blocks) * gpu.multiprocessors;
  return grid;
}

std::size_t decode_partial_bytes(const DecodeGrid& grid, int head_dim) {
  return 2 * static_cast<std::size_t>(grid.blocks) *
         static_cast<std::size_t>(decode_partial_floats(head_dim, grid.columns)) * sizeof(float);
}

std::size_t flash_partial_bytes(int head_dim, const GpuTraits& gpu) {
  if (!gpu.features.wgmma) return 0;  // mma.sync cuts no keys
  return static_cast<std::size_t>(flash_max_pieces(gpu.multiprocessors)) * kFlashWarpgroups *
         static_cast<std::size_t>(flash_partial_floats(head_dim)) * sizeof(float);
}

Expanded lay_out_expanded(const Attention& op, std::byte* memory) {
  Expanded e;
  const auto take = [&](std::size_t bytes) {
    std::byte* at = memory == nullptr ? nullptr : memory + e.bytes;
    e.bytes += aligned_bytes(bytes);
    return at;
  };
  const auto count = static_cast<std::size_t>(op.batch.count);
  e.kv = op.kv.unquantised(nullptr);
  e.kv.data = take(kExpandedPages * e.kv.block_bytes());
  e.fitting = reinterpret_cast<SequenceRows*>(take(count * sizeof(SequenceRows)));
  e.remaining = reinterpret_cast<SequenceRows*>(take(count * sizeof(SequenceRows)));
  e.remaining_count = reinterpret_cast<int*>(take(sizeof(int)));
  e.blocks = reinterpret_cast<BlockId*>(take(kExpandedPages * sizeof(BlockId)));
  e.first_page = reinterpret_cast<int*>(take((count + 1) * sizeof(int)));
  return e;
}

std::size_t prefill_bytes(const Attention& op, const GpuTraits& gpu) {
  const std::size_t partials = flash_partial_bytes(op.kv.head_dim, gpu);
  return op.kv.quantised() ? lay_out_expanded(op, nullptr).bytes + partials : partials;
}

// The parts of a batch run one after the other and use the same memory.
std::size_t scratch_bytes(const Attention& op, const GpuTraits& gpu) {
  const AttentionChoice choice = choose(shape_of(op), gpu);
  const auto decode_bytes = [&](DecodeRows rows) {
    return decode_partial_bytes(decode_grid(rows, op, gpu), op.kv.head_dim);
  };
  if (choice.decodes == AttentionWay::few) return decode_bytes(DecodeRows::few);
  std::size_t bytes = 0;
  if (choice.decodes == AttentionWay::decode)
    bytes = decode_bytes(choice.one_launch() ? DecodeRows::all : DecodeRows::single);
  if (choice.pieces == AttentionWay::flash) {
    bytes = std::max(bytes, prefill_bytes(op, gpu));
    if (op.kv.quantised()) bytes = std::max(bytes, decode_bytes(DecodeRows::all));  // what was not expanded
  }
  return bytes;
}

}  // namespace troupe::kernels::cuda
