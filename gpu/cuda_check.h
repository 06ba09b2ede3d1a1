#pragma once
// TROUPE_CUDA(cudaFoo(...)): throws CudaError with expression, place and device when the call fails. For
// gpu/*.cpp and kernels/*_cuda.cu only, where CUDA's headers may be included.
#include <cuda_runtime_api.h>

namespace troupe::cuda {

/// Throws unless `error` is cudaSuccess.
void check(cudaError_t error, const char* expression, const char* file, int line);

/// What the message of an error adds: the step at hand. Set by Cuda::set_step() through its owner.
void set_current_step(unsigned long long step);

}  // namespace troupe::cuda

#define TROUPE_CUDA(expression) ::troupe::cuda::check((expression), #expression, __FILE__, __LINE__)
