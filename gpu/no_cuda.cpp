// The Cuda device of a build without CUDA: it cannot be made, and cuda_usable() says why.
#include "gpu/cuda.h"
#include "gpu/nccl.h"

namespace troupe {

struct Cuda::Staging {};

Status cuda_usable(int) {
  return failure(Code::unsupported, "This build has no CUDA device: it was made without the CUDA toolkit.");
}

int cuda_devices() { return 0; }

bool cuda_reaches(int, int) { return false; }

bool cuda_initialized() { return false; }

Result<std::string> nccl_version(const char*) { return cuda_usable(); }

Cuda::Cuda(const CudaOptions&) { throw CudaError(cuda_usable().message); }
Cuda::~Cuda() = default;
void* Cuda::alloc(std::size_t) { return nullptr; }
void Cuda::free(void*) {}
void Cuda::upload(void*, const void*, std::size_t) {}
void Cuda::upload_lines(void*, const ByteSource&, std::uint64_t, std::size_t, std::size_t, std::size_t) {}
void Cuda::release_staging() {}
std::size_t Cuda::staging_bytes() const { return 0; }
void Cuda::copy(void*, const void*, std::size_t) {}
void Cuda::copy_rows(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t) {}
void Cuda::zero(void*, std::size_t) {}
void Cuda::download(void*, const void*, std::size_t) {}
void Cuda::sync() {}
void Cuda::set_step(std::uint64_t) {}
void* Cuda::scratch(std::size_t) { return nullptr; }
void Cuda::use_on_this_thread() const {}
std::string Cuda::describe() const { return name; }
CudaMemory Cuda::memory() const { return {}; }

}  // namespace troupe
