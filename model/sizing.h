#pragma once
// How much of a machine a model takes, and what is left for keys and values.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/checkpoint/spec.h"

namespace troupe::model {

/// Sizes a CPU worker: weights and activations come first, the rest is for KV blocks. `available` is what the
/// process may take, in bytes. Unset limits are chosen (32 sequences, 512 tokens a step, a quarter of
/// what is left but at most 4 GiB for KV, never more than all sequences at full length use); set ones
/// that do not fit are an error that says what is needed, what is there, and which flag to change. A
/// found_model_len is an upper bound only.
Result<wire::Capacity> size_cpu(const ModelSpec& spec, DType dtype, bool tied, const config::Options& options,
                                std::uint64_t available);

/// A GPU's memory as it is now.
struct GpuMemory {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};

/// The limits of a CUDA worker (unset ones: 256 sequences, 8192 tokens a step) and what it takes besides KV
/// blocks. kv_blocks stays 0.
Result<wire::Capacity> cuda_limits(const ModelSpec& spec, DType dtype, bool tied,
                                   const config::Options& options);

/// Gives KV blocks what is left: all that the worker takes stays within --gpu-memory-utilization of the whole
/// memory, of which what is not free is taken. `to_come` bytes will be taken for other things yet.
/// --num-gpu-blocks-override names the number instead. unavailable, in one sentence that says what is needed,
/// what is free and which flag to lower, when not even one sequence of the wanted length fits.
Status fit_cuda_kv(wire::Capacity& capacity, const ModelSpec& spec, DType dtype,
                   const config::Options& options, const GpuMemory& memory, std::uint64_t to_come);

/// What a worker will have taken before its KV blocks, as far as it can be told without starting it: weights,
/// activations, working memory of the experts, and a share for graphs and the kernels' code.
std::uint64_t cuda_fixed_bytes(const wire::Capacity& capacity, const ModelSpec& spec, DType dtype);

/// Sizes the echo executor, which has a vocabulary and limits but no memory; `spec` may be null.
Result<wire::Capacity> size_echo(const ModelSpec* spec, const config::Options& options);

/// Sequences of max_model_len tokens that the KV blocks hold at once.
int sequences_at_full_length(const wire::Capacity& capacity);

std::string bytes_text(std::uint64_t bytes);  ///< "1.50 GiB", "270 MiB"

}  // namespace troupe::model
