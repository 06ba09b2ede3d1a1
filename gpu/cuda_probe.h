#pragma once
// A look at the GPU from a process that must not use it: a GPU context takes memory and survives no fork.
#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

struct CudaProbe {
  std::string name;  ///< as Cuda::describe()
  std::uint64_t free = 0;
  std::uint64_t total = 0;
};

/// What Cuda would find, found in a child process that lives for a fraction of a second; in this process where
/// cuda_initialized() says that there is nothing left to spare it. Memory for a context counts as taken, as it
/// will be for whoever uses the GPU. unsupported with the sentence of cuda_usable(), unavailable when the GPU
/// has not even room for a context.
Result<CudaProbe> probe_cuda(int ordinal = 0);

}  // namespace troupe
