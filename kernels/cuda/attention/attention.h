#pragma once
// The three ways to run Attention, and who takes which sequence.
//
//   decode    sequences with tokens == 1: KV memory streams through the tensor cores once, all q heads of a
//             KV head side by side; long sequences are cut among the blocks, on the device. 16-bit types,
//             head_dim 64 and 128, up to 8 q heads a KV head, Hopper
//   prefill   sequences with tokens > 1: tiles of queries, wgmma; where prefill_takes()
//   generic   any dtype, shape and GPU; slow
// The host sees batch.rows and batch.count alone, which graphs freeze: rows <= count means that there is no
// piece of a prompt (padding sequences have 0 tokens), else decode and prefill are both launched, and each
// skips the other's sequences by what device memory says. Padding is skipped by all.
#include "gpu/cuda.h"
#include "kernels/attention.h"

namespace troupe::kernels::cuda {

enum class DecodeRows {
  single,  ///< sequences of one token; a long past is cut where the blocks' shares of the work end
  all,     ///< every token of every sequence is a row of its own, and no row's past is cut: the bits of a
           ///< row depend on that row alone
};

/// Whether the decode kernel takes this dtype, shape and GPU.
bool decode_takes(const Cuda& device, const Attention& op);
void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows);

/// Every row of every sequence.
void run_generic_attention(Cuda& device, const Attention& op);

/// Whether the prefill kernel takes this dtype, shape and GPU. Never with batch_invariant().
bool prefill_takes(const Cuda& device, const Attention& op);
/// Sequences with tokens > 1; leaves the rows of all others untouched. May be launched with none of them.
void run_prefill_attention(Cuda& device, const Attention& op);

}  // namespace troupe::kernels::cuda
