#pragma once
// Measures the peak throughput of the GPU's tensor cores, the bound for matrix products.
#include "gpu/cuda.h"

namespace troupe::kernels {

/// Floating-point operations per second of bf16 products with operands in shared memory, on all
/// multiprocessors and with random numbers (zeros draw less power and run faster). Uses wgmma on Hopper,
/// mma.sync on other GPUs. Takes a few milliseconds. Throws CudaError.
double matrix_peak(Cuda& device);

}  // namespace troupe::kernels
