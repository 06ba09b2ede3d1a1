#pragma once
// Describes the GPU for a process that must not use it: a GPU context takes memory and does not survive a
// fork.
#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

struct CudaProbe {
  std::string name;  ///< as Cuda::describe()
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  int capability = 0;         ///< as Cuda::capability()
  bool accelerated = false;   ///< kernels made for this capability alone run (GpuFeatures::wgmma)
  int devices = 0;            ///< as cuda_devices()
  std::uint64_t reaches = 0;  ///< bit i: the GPU can use the memory of GPU i
};

/// "NVIDIA H200": what the driver calls the GPU.
std::string card_name(const CudaProbe& gpu);

/// What Cuda would find. Asks in a child process that lives for a fraction of a second; in this process if
/// cuda_initialized() already. The free memory is less that of a context, which every user of the GPU needs.
/// unsupported with the sentence of cuda_usable(); unavailable if the GPU has no room for a context.
Result<CudaProbe> probe_cuda(int ordinal = 0);

}  // namespace troupe
