#include "gpu/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"
#include "gpu/cuda_check.h"
#include "gpu/gpu_like.h"

namespace troupe {
namespace {

Status unreachable(const PeerAddress& address, cudaError_t error) {
  (void)cudaGetLastError();  // it is told here, and must not fail a later call
  return failure(Code::unavailable, "the memory of GPU " + std::to_string(address.ordinal) +
                                        " cannot be reached: " + cudaGetErrorString(error));
}

}  // namespace

SharedMemory::SharedMemory(Cuda& device, std::size_t bytes) : device_(&device), bytes_(bytes) {
  data_ = static_cast<std::byte*>(device.alloc(bytes));
  if (data_ == nullptr) throw CudaError("no GPU memory is left for the exchange between ranks");
  cudaIpcMemHandle_t handle;
  static_assert(sizeof handle == sizeof address_.handle);
  TROUPE_CUDA(cudaIpcGetMemHandle(&handle, data_));
  address_.process = ::getpid();
  address_.made_ns = now_ns();
  address_.ordinal = device.ordinal();
  address_.address = reinterpret_cast<std::uint64_t>(data_);
  std::memcpy(address_.handle, &handle, sizeof handle);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) device_->free(data_);
}

Result<PeerMemory> PeerMemory::open(Cuda& device, const PeerAddress& address) {
  if (keeps_gpus_apart() && address.ordinal != device.ordinal())
    return unreachable(address, cudaErrorPeerAccessUnsupported);
  PeerMemory opened;
  opened.address_ = address;
  if (address.process == ::getpid()) {
    if (address.ordinal != device.ordinal()) {
      const cudaError_t error = cudaDeviceEnablePeerAccess(address.ordinal, 0);
      if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled)
        return unreachable(address, error);
      (void)cudaGetLastError();
    }
    opened.data_ = reinterpret_cast<std::byte*>(address.address);
    return opened;
  }
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, address.handle, sizeof handle);
  void* data = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return unreachable(address, error);
  opened.data_ = static_cast<std::byte*>(data);
  opened.mapped_ = true;
  return opened;
}

PeerMemory::~PeerMemory() {
  if (mapped_) (void)cudaIpcCloseMemHandle(data_);
}

}  // namespace troupe
