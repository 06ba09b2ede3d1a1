#pragma once
// From options to a loaded executor.
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "model/executor.h"
#include "model/load_progress.h"

namespace troupe::model {

/// Opens the model that options.model.directory names, sizes it to what is free now, and loads it on
/// options.device. Takes seconds for a large model. To be called on the thread that will use the
/// executor: the CPU device pins it. The same errors as preflight(), except for the tokenizer.
Result<std::unique_ptr<Executor>> make_executor(const config::Options& options,
                                                const LoadProgress& progress = {});

}  // namespace troupe::model
