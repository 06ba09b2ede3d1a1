#pragma once
// The ways to run Attention; choose.h says which.
#include "gpu/cuda.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/choose.h"

namespace troupe::kernels::cuda {

enum class DecodeRows {
  single,  ///< sequences with one token; a long past may be divided among several blocks
  few,     ///< likewise sequences with 1 … Batch::most_tokens tokens, each with all its tokens at once
  all,  ///< every token of every sequence is a row, and no row's past is divided: the bits of a row's result
        ///< depend on that row alone
};

// working_memory: scratch_bytes() of the op (kernels/cuda/scratch.h).
/// Of the op's sequences with one or few tokens, or of every row. Leaves other rows of `out` as they are.
/// With `sequences_left` (device memory): *sequences_left is 0 if no sequence has tokens.
void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows, void* working_memory,
                          const int* sequences_left = nullptr);
void run_generic_attention(Cuda& device, const Attention& op, DecodeRows rows = DecodeRows::all);
/// Of sequences with several tokens; leaves the rows of all others as they are. There may be none. A plain
/// cache of 16-bit elements with a head_dim of 64 or 128; by mma.sync, on any GPU.
void run_flash_mma(Cuda& device, const Attention& op);
/// The same of any cache that choose() gives to AttentionWay::flash.
void run_prefill_attention(Cuda& device, const Attention& op, void* working_memory);

}  // namespace troupe::kernels::cuda
