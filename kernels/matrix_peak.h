#pragma once
// What the GPU's tensor cores do at most: the ceiling that products are set beside.
#include "gpu/cuda.h"

namespace troupe::kernels {

/// Floating-point operations per second of bf16 products whose operands stay in shared memory, all
/// multiprocessors at work, on random numbers (zeros draw less power and run faster). On Hopper with its
/// asynchronous products, before it with the older ones. Takes some milliseconds. Throws CudaError.
double matrix_peak(Cuda& device);

}  // namespace troupe::kernels
