#pragma once
// How much of a machine a model takes, and what is left for keys and values.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/spec.h"

namespace troupe::model {

/// Sizes a CPU worker: weights and activations come first, the rest is for KV blocks. `available` is what the
/// process may take, in bytes. Unset limits are chosen (32 sequences, 512 tokens a step, a quarter of
/// what is left but at most 4 GiB for KV, never more than all sequences at full length use); set ones
/// that do not fit are an error that says what is needed, what is there, and which flag to change.
Result<wire::Capacity> size_cpu(const ModelSpec& spec, DType dtype, bool tied, const config::Options& options,
                                std::uint64_t available);

/// Sizes the echo executor, which has a vocabulary and limits but no memory; `spec` may be null.
Result<wire::Capacity> size_echo(const ModelSpec* spec, const config::Options& options);

/// Sequences of max_model_len tokens that the KV blocks hold at once.
int sequences_at_full_length(const wire::Capacity& capacity);

std::string bytes_text(std::uint64_t bytes);  ///< "1.50 GiB", "270 MiB"

}  // namespace troupe::model
