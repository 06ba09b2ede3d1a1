#pragma once
// The CUDA device, as far as the rest of model/ knows it. A build without CUDA links no_executor.cpp.
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "model/checkpoint/model_files.h"
#include "model/executor.h"
#include "model/load_progress.h"

namespace troupe::model {

/// Loads the weights (or draws dummy ones), prepares every step, and gives what is left of the GPU's memory
/// to KV blocks. The calling thread has to use the executor; the files may go afterwards. unsupported where
/// there is no usable GPU, unavailable where there is too little memory.
Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles& files, const config::Options& options,
                                                     const LoadProgress& progress = {});

}  // namespace troupe::model
