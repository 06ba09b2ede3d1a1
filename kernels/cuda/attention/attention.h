#pragma once
// The three kernels that run Attention, and which sequences each computes.
//
//   decode    sequences with tokens == 1. K and V are read once; all q heads of a KV head share one product;
//             long sequences are divided among blocks on the device. 16-bit types, head_dim 64 and 128, up to
//             8 q heads per KV head, Hopper
//   prefill   sequences with tokens > 1: tiles of queries, wgmma. If prefill_takes()
//   generic   any dtype, shape and GPU; slow
// The host knows only batch.rows and batch.count, which CUDA graphs freeze. rows <= count means that there is
// no prefill chunk (padding sequences have 0 tokens). Otherwise decode and prefill are both launched, and
// each skips the other's sequences by their `tokens` in device memory. All kernels skip padding.
#include "gpu/cuda.h"
#include "kernels/attention.h"

namespace troupe::kernels::cuda {

enum class DecodeRows {
  single,  ///< sequences with one token; a long past may be divided among several blocks
  all,  ///< every token of every sequence is a row, and no row's past is divided: the bits of a row's result
        ///< depend on that row alone
};

/// True if the decode kernel can run this dtype, shape and GPU.
bool decode_takes(const Cuda& device, const Attention& op);
void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows);

/// Computes every row of every sequence.
void run_generic_attention(Cuda& device, const Attention& op);

/// True if the prefill kernel can run this dtype, shape and GPU. False with batch_invariant().
bool prefill_takes(const Cuda& device, const Attention& op);
/// Computes sequences with tokens > 1; does not touch the rows of others. The batch may contain none.
void run_prefill_attention(Cuda& device, const Attention& op);

}  // namespace troupe::kernels::cuda
