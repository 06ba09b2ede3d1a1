#pragma once
// Working memory of Attention on a GPU: how the launches divide their work and what their partial results
// take. Pure functions of shapes and of the GPU; kernels/cuda/scratch.h puts them together.
#include <cstddef>

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/expand.h"
#include "kernels/cuda/gpu_traits.h"

namespace troupe::kernels::cuda {

/// Blocks of the decode kernel that share a short item.
inline constexpr int kDecodeCluster = 8;
inline constexpr int kDecodeBlocksPerMultiprocessor = 2;
/// With less shared memory for a block a multiprocessor has room for one.
inline constexpr int kTwoSmallDecodeBytes = 163 << 10;
/// Up to this many sequences, one block per multiprocessor is faster: there are fewer partial results, and
/// the next kernel's blocks start before these have ended. With more sequences two are faster in a whole
/// step, though not in this kernel alone: while the previous kernel ends, a multiprocessor that is free early
/// may get two blocks and another none.
inline constexpr int kDecodeFewSequences = 8;

/// The kernels for items of several tokens: each takes up to so many columns, (token, q head of a KV head).
struct FewKernel {
  int columns = 0;
  int blocks_per_multiprocessor = 0;
};
inline constexpr FewKernel kFewKernels[] = {{16, 2}, {32, 1}, {48, 1}, {72, 1}};
static_assert(kFewKernels[3].columns == kMostVerified * kDecodeGroup);

/// A few sequences are faster in passes: each takes as many of a sequence's tokens as the first of
/// kFewKernels has columns for, and reads the keys and values by itself, all but one from the L2 cache. Then
/// more blocks work, on less each. One pass more costs more than the one before it saved, so sequences × KV
/// heads × passes × (passes - 1) may be at most this many times the number of multiprocessors.
inline constexpr int kMostPassItems = 3;

/// The blocks of a decode attention launch.
struct DecodeGrid {
  int blocks = 0;
  bool clusters = false;       ///< they are clusters of kDecodeCluster
  int columns = kDecodeGroup;  ///< of a partial result
  int few_kernel = -1;         ///< index in kFewKernels; -1: the kernel for items of one token
  int pass_tokens = 1;         ///< tokens of a sequence in an item, at most
};
/// Attention::first is known to the kernels for several tokens alone, which then run every DecodeRows.
DecodeGrid decode_grid(DecodeRows rows, const Attention& op, const GpuTraits& gpu);

/// Floats of a partial result of the decode kernel: the sums of its columns relative to the maximum, then the
/// maximum and the sum of each.
constexpr int decode_partial_floats(int head_dim, int columns) { return columns * head_dim + 2 * columns; }
/// Two partial results for each block.
std::size_t decode_partial_bytes(const DecodeGrid& grid, int head_dim);

/// With at most this many tiles, the flash kernel may cut the tiles' keys into pieces, at most about
/// kFlashRounds for each block.
inline constexpr int kFlashCutTiles = 384;
inline constexpr int kFlashRounds = 3;
inline constexpr int kFlashWarpgroups = 2;
/// The most pieces that a plan with cut tiles has.
constexpr int flash_max_pieces(int blocks) { return kFlashRounds * blocks + kFlashCutTiles; }
/// Floats of a warpgroup's partial result for a piece of the keys.
constexpr int flash_partial_floats(int head_dim) { return (head_dim / 2 + 4) * 128; }
std::size_t flash_partial_bytes(int head_dim, const GpuTraits& gpu);

/// What run_prefill_attention() needs: partial results, and of an 8-bit cache the expanded pages before them.
std::size_t prefill_bytes(const Attention& op, const GpuTraits& gpu);

}  // namespace troupe::kernels::cuda
