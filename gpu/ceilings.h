#pragma once
// What this machine can do at most, measured in the run whose figures are set beside it.
#include <vector>

#include "gpu/cpu.h"
#include "gpu/cuda.h"

namespace troupe {

/// Bytes per second that the device's threads read together from memory: the best of a few passes over
/// `bytes` (more than the caches hold).
double read_bandwidth(Cpu& device, std::size_t bytes = std::size_t{512} << 20);

/// Floating-point operations per second of bf16 inner products with all threads and operands in
/// registers: bf16 dot products where the instruction set has them, fused multiply-adds else.
double dot_peak(Cpu& device);

/// Bytes per second, read and written ones together, of a copy within the GPU's memory: the best of a few of
/// `bytes` (several times the L2 cache; taken and given back). Throws CudaError.
double copy_bandwidth(Cuda& device, std::size_t bytes = std::size_t{2} << 30);

}  // namespace troupe
