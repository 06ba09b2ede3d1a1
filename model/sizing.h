#pragma once
// How much memory a model takes, and how much is left for KV blocks.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/checkpoint/spec.h"
#include "model/host_memory.h"
#include "model/weight_formats.h"

namespace troupe::model {

/// Sizes a CPU worker: first weights and activations, then KV blocks. `spec`: what the rank holds of the
/// model. `memory`: what the process may allocate; what is reserved of it stays free. Limits that are not set
/// get defaults: 32 sequences, 512 tokens a step; for KV a quarter of what is left, but room for 1,024
/// tokens, at most 4 GiB and at most what all sequences at full length use. Limits that are set and do not
/// fit are an error that says what each part needs, the sum, what is free and which flag to change.
/// found_model_len is only an upper bound: a smaller max_model_len that fits is no error. The swap space is
/// what is asked for, from what is left then (swap/swap_sizing.h). Of a model that sees, the activations
/// include the encoder's and its output: that of the longest sequence, so that every item that one has room
/// for can be encoded, and what is kept for later requests.
Result<wire::Capacity> size_cpu(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                const config::Options& options, const HostMemory& memory);

/// Sequences of a CUDA worker by default, where memory allows it.
inline constexpr int kCudaSequences = 512;

/// Bytes of a GPU's memory now.
struct GpuMemory {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};

/// The limits and the memory of a CUDA worker, before it has loaded anything: how many KV blocks will fit is
/// estimated. `spec`: what the rank holds of the model.
/// Defaults: 8192 tokens a step, and the most of 512, 256, 128, 64 and 32 sequences that find KV blocks for
/// 1,024 tokens each. Errors as fit_cuda_kv().
Result<wire::Capacity> size_cuda(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                 const config::Options& options, const GpuMemory& memory);

/// The limits of a CUDA worker with `sequences` by default, and the bytes of its weights and activations.
/// kv_blocks stays 0; fit_cuda_kv() sets it.
Result<wire::Capacity> cuda_limits(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                   const config::Options& options, int sequences = kCudaSequences);

/// Sets the KV blocks of `capacity` to what fits: used memory (total - free), plus `to_come` bytes that will
/// still be allocated for other things, plus the KV blocks stay within --gpu-memory-utilization × total.
/// --num-gpu-blocks-override sets the number directly. Code::unavailable when not even one sequence of the
/// wanted length fits; the message says what is needed, what is free and which flag to change.
Status fit_cuda_kv(wire::Capacity& capacity, const ModelSpec& spec, const WeightFormats& formats,
                   const config::Options& options, const GpuMemory& memory, std::uint64_t to_come);

/// Estimate of the bytes a worker allocates besides its KV blocks: weights, activations, the ops' working
/// memory, and an allowance for graphs and the kernels' code.
std::uint64_t cuda_fixed_bytes(const wire::Capacity& capacity, const ModelSpec& spec,
                               const WeightFormats& formats);

/// Sizes the echo executor, which has a vocabulary and limits but needs no memory; `spec` may be null.
Result<wire::Capacity> size_echo(const ModelSpec* spec, const config::Options& options);

/// Tokens of encoder output that a worker keeps for later requests (--max-encoder-cache).
int kept_media_tokens(const config::Options& options, const wire::Capacity& capacity);

/// Bytes of these and of capacity.media_tokens, which sequences hold.
std::uint64_t encoder_output_bytes(const wire::Capacity& capacity, const ModelSpec& spec,
                                   const WeightFormats& formats, const config::Options& options);

/// Sequences of max_model_len tokens that the KV blocks hold at once, at most max_slots.
int sequences_at_full_length(const wire::Capacity& capacity);

}  // namespace troupe::model
