#pragma once
// Refuses a request whose parameters would make the worker refuse the whole plan.
#include "actors/messages.h"
#include "base/status.h"

namespace troupe {

/// Sampling parameters, stop ids and logit biases of a sequence: ok, or invalid_argument naming the
/// parameter. `max_logprobs` and `vocab_size` are the worker's.
Status check_sampling(const SequenceSpec& spec, std::int32_t vocab_size, std::int32_t max_logprobs);

}  // namespace troupe
