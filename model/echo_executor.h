#pragma once
// An executor without a model: every answer repeats the prompt's ids from the first on. It takes no time, so
// that measurements above it do not contain a model. Where a mask does not allow an id, the next one that it
// allows takes its place. Its logprobs are 0.
#include <memory>

#include "config/options.h"
#include "ipc/wire.h"
#include "model/executor.h"

namespace troupe::model {

std::unique_ptr<Executor> make_echo_executor(const wire::Capacity& capacity,
                                             const config::SpeculationOptions& speculation = {});

}  // namespace troupe::model
