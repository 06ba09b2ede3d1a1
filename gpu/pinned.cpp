#include "gpu/pinned.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "gpu/cuda.h"
#include "gpu/cuda_check.h"

namespace troupe {

PinnedMemory::PinnedMemory(std::size_t bytes, Contents contents) : bytes_(bytes) {
  void* memory = nullptr;
  TROUPE_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  data_ = static_cast<std::byte*>(memory);
  if (contents == Contents::zero) std::memset(data_, 0, bytes);
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

PinnedMapping::PinnedMapping(std::span<std::byte> memory) : memory_(memory) {
  TROUPE_CUDA(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable));
}

PinnedMapping::~PinnedMapping() { cudaHostUnregister(memory_.data()); }

}  // namespace troupe
