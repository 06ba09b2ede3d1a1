#pragma once
// An executor without a model: every answer repeats the prompt's ids from the first, over and over. Instant,
// so that whatever is measured above it is not the model; its logprobs are those of certainty, 0.
#include <memory>

#include "ipc/wire.h"
#include "model/executor.h"

namespace troupe::model {

std::unique_ptr<Executor> make_echo_executor(const wire::Capacity& capacity);

}  // namespace troupe::model
