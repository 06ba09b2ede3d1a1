#pragma once
// Makes the executor that the options ask for, with its model loaded.
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "model/executor.h"
#include "model/load_progress.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// Opens the model in options.model.directory, sizes it to the memory that is free now and loads it on
/// options.device. Takes seconds for a large model. Call it on the thread that will use the executor: the CPU
/// device pins that thread to its cores. Errors: those of preflight(), except for the tokenizer's.
Result<std::unique_ptr<Executor>> make_executor(const config::Options& options,
                                                const LoadProgress& progress = {},
                                                const RankPlace& place = {});

}  // namespace troupe::model
