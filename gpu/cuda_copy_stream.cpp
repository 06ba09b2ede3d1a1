#include "gpu/cuda_copy_stream.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"

namespace troupe {

void use_gpu(int ordinal) { TROUPE_CUDA(cudaSetDevice(ordinal)); }

std::string pci_address_of(int ordinal) {
  char text[32] = {};
  TROUPE_CUDA(cudaDeviceGetPCIBusId(text, sizeof text, ordinal));
  return text;
}

CudaCopyStream::CudaCopyStream(Cuda&) {
  TROUPE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaCopyStream::~CudaCopyStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CudaCopyStream::copy(void* to, const void* from, std::size_t bytes) {
  TROUPE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
}

void CudaCopyStream::copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                               std::size_t bytes, std::size_t rows) {
  if (rows == 1) return copy(to, from, bytes);  // a pitch below the width is an error
  TROUPE_CUDA(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault, stream_));
}

void CudaCopyStream::sync() { TROUPE_CUDA(cudaStreamSynchronize(stream_)); }

StreamMemory::StreamMemory(CudaCopyStream& stream, std::size_t bytes) : stream_(stream.stream()) {
  void* memory = nullptr;
  TROUPE_CUDA(cudaMallocAsync(&memory, bytes, stream_));
  data_ = static_cast<std::byte*>(memory);
}

StreamMemory::~StreamMemory() { cudaFreeAsync(data_, stream_); }

}  // namespace troupe
