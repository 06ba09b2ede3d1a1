#pragma once
#include <cstddef>
#include <span>

#include "gpu/cuda.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/pinned.h"

namespace troupe::model {

/// Copies between a GPU's memory and memory of the host, which it page-locks while it lives, on a stream
/// beside the steps. The device outlives it. One thread at a time, which need not be the device's.
class PinnedCopies {
 public:
  /// Throws CudaError.
  PinnedCopies(Cuda& device, std::span<std::byte> memory)
      : device_(device), memory_(memory), stream_(device) {}

  /// Returns when the bytes have been copied. False: the device has failed, which its own thread reports.
  bool copy(void* to, const void* from, std::size_t bytes) {
    try {
      device_.use_on_this_thread();
      stream_.copy(to, from, bytes);
      stream_.sync();
      return true;
    } catch (const CudaError&) {
      return false;
    }
  }

 private:
  Cuda& device_;
  PinnedMapping memory_;
  CudaCopyStream stream_;
};

}  // namespace troupe::model
