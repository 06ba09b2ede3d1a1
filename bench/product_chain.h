#pragma once
// What products with few rows take at least when each waits for the one before: the floor that products of a
// few megabytes are set beside, where the memory's bandwidth is out of reach.
#include <cstddef>

#include "gpu/cuda.h"

namespace troupe::kernels {

/// A chain of kernels like those of a decode step, which do nothing but what no product can do without. On
/// every multiprocessor a block fetches weights ahead of its turn, waits for the kernel before, reads x and
/// stores 32 bytes, which are part of the next kernel's x. It does not even look at the weights.
struct ProductChain {
  const void* weights = nullptr;  ///< a kernel reads what lies behind the one before's, then from the start
  std::size_t weights_bytes = 0;  ///< several times the L2 cache
  int fetched = 0;                ///< bytes of weights of a block: a multiple of 1 KiB, at most 112
  void* x = nullptr;              ///< twice (x_bytes, and 32 of each multiprocessor)
  int x_bytes = 0;                ///< that each block reads: a multiple of 128, at most 32 KiB
  int kernels = 0;
};

/// Launches them. Hopper only: elsewhere no kernel starts before the one before it is over.
void run(Cuda& device, const ProductChain& op);

}  // namespace troupe::kernels
