#pragma once
// The machine's limits, measured in the same run as the figures that are compared with them.
#include <cstddef>
#include <vector>

#include "gpu/cpu.h"
#include "gpu/cuda.h"

namespace troupe {

/// `least`, or twice the last-level caches of the processors in use if that is more, up to 1 GiB: who reads
/// so much from front to back again and again finds little of it in a cache.
std::size_t bytes_beyond_caches(std::size_t least);

/// Bytes per second that the device's threads read together from memory: the best of a few passes over at
/// least 512 MiB, more than the caches hold. 0 if there is no room for them.
double read_bandwidth(Cpu& device);

/// Floating-point operations per second of bf16 inner products with all threads and operands in
/// registers: products of tiles or bf16 dot products if the instruction set has them, otherwise fused
/// multiply-adds.
double dot_peak(Cpu& device);

/// The same of 8-bit inner products, multiplications and additions: products of tiles or dot products of
/// bytes if the instruction set has them, otherwise two steps with halves of a byte (kernels/cpu/dots.h).
double int8_dot_peak(Cpu& device);

/// Bytes per second, read and written, of a copy within the GPU's memory: the best of a few copies of
/// `bytes`, which is several times the L2 cache. Allocates that memory and frees it. Throws CudaError.
double copy_bandwidth(Cuda& device, std::size_t bytes = std::size_t{2} << 30);

}  // namespace troupe
