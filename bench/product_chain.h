#pragma once
// Measures the minimum time of small products that depend on each other: the bound for products with a few
// megabytes of weights, which cannot reach the memory bandwidth.
#include <cstddef>

#include "gpu/cuda.h"

namespace troupe::kernels {

/// A chain of kernels like those of a decode step, reduced to what every product must do. On each
/// multiprocessor a block copies weights to shared memory early, waits for the previous kernel, reads x and
/// stores 32 bytes, which are part of the next kernel's x. It never reads the weights.
struct ProductChain {
  const void* weights =
      nullptr;  ///< each kernel reads the weights after the previous kernel's, wrapping around
  std::size_t weights_bytes = 0;  ///< several times the L2 cache
  int fetched = 0;                ///< bytes of weights per block: a multiple of 1 KiB, at most 112 KiB
  void* x = nullptr;              ///< twice (x_bytes, and 32 of each multiprocessor)
  int x_bytes = 0;                ///< that each block reads: a multiple of 128, at most 32 KiB
  int kernels = 0;
};

/// Launches the chain. Hopper only: on other GPUs kernels do not overlap.
void run(Cuda& device, const ProductChain& op);

}  // namespace troupe::kernels
