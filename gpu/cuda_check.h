#pragma once
// TROUPE_CUDA(cudaFoo(...)): throws CudaError with expression, place and device when the call fails. For
// gpu/*.cpp and kernels/*_cuda.cu only, where CUDA's headers may be included.
#include <cuda_runtime_api.h>

namespace troupe::cuda {

/// Throws unless `error` is cudaSuccess.
void check(cudaError_t error, const char* expression, const char* file, int line);

/// Sets the step that error messages of this thread name. Called by Cuda::set_step().
void set_current_step(unsigned long long step);

}  // namespace troupe::cuda

#define TROUPE_CUDA(expression) ::troupe::cuda::check((expression), #expression, __FILE__, __LINE__)
