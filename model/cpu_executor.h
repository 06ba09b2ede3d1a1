#pragma once
// The CPU worker's executor.
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/checkpoint/model_files.h"
#include "model/executor.h"
#include "model/load_progress.h"
#include "model/make_executor.h"

namespace troupe::model {

/// Loads the weights, or a rank's part of them (or draws dummy ones), and takes all memory of `capacity`,
/// which size_cpu() made. Pins the calling thread; only that thread may use the executor. The files are not
/// needed afterwards.
Result<std::unique_ptr<Executor>> make_cpu_executor(const ModelFiles& files, const config::Options& options,
                                                    const wire::Capacity& capacity,
                                                    const LoadProgress& progress = {},
                                                    const RankPlace& place = {});

}  // namespace troupe::model
