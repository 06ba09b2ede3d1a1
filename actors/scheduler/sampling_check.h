#pragma once
// What a worker would refuse a whole plan for is refused here, for the one request that brings it.
#include "actors/messages.h"
#include "base/status.h"

namespace troupe {

/// Sampling parameters, stop ids and logit biases of a sequence: ok, or invalid_argument naming the
/// parameter. `max_logprobs` and `vocab_size` are the worker's.
Status check_sampling(const SequenceSpec& spec, std::int32_t vocab_size, std::int32_t max_logprobs);

}  // namespace troupe
