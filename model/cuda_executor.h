#pragma once
// The CUDA device, as far as the rest of model/ knows it. A build without CUDA links no_cuda_executor.cpp.
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "model/executor.h"
#include "model/model_files.h"

namespace troupe::model {

/// Whether this build has the device and this machine a GPU that it can use.
bool cuda_available();

/// Sizes, loads and starts; unsupported in a build without CUDA.
Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles& files, const config::Options& options);

/// What it would take, without taking it.
Result<wire::Capacity> size_cuda(const ModelFiles& files, const config::Options& options);

}  // namespace troupe::model
