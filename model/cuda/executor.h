#pragma once
// Makes the CUDA executor. A build without CUDA links no_executor.cpp instead.
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "config/options.h"
#include "model/checkpoint/model_files.h"
#include "model/executor.h"
#include "model/load_progress.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// Loads the weights (or draws dummy ones), prepares every step, and gives the rest of the GPU's memory to KV
/// blocks. Only the calling thread may use the executor. The files are not needed afterwards. unsupported if
/// there is no usable GPU, unavailable if there is too little memory.
Result<std::unique_ptr<Executor>> make_cuda_executor(const ModelFiles& files, const config::Options& options,
                                                     const LoadProgress& progress = {},
                                                     const RankPlace& place = {});

/// Device memory that each of so many ranks has for exchanges through the memory of other GPUs: up to
/// kernels::kMostPeers ranks. 0 in a build without CUDA.
std::uint64_t peer_exchange_bytes(int ranks);

}  // namespace troupe::model
