#pragma once
// Two ranks that send bytes from one GPU to another over NCCL. No call waits for the other rank, and what is
// under way can be given up, as the communicator does not block (ncclConfig_t::blocking = 0).
#include <cstddef>

#include "gpu/nccl_library.h"

namespace troupe {

/// One rank's end. One thread at a time, whose current GPU is the rank's. All but the destructor throw
/// CudaError; after that only the destructor may be called.
class NcclPair {
 public:
  /// Begins to look for the other rank; ranks are 0 and 1. `nccl` outlives it.
  NcclPair(const NcclFunctions& nccl, const NcclId& id, int rank);
  /// Gives up what is under way; kernels of it end soon. May take long where the other rank stands still.
  ~NcclPair();
  NcclPair(const NcclPair&) = delete;
  NcclPair& operator=(const NcclPair&) = delete;

  /// True once what was begun last (the search, send() or receive()) has been handed to the GPU. Throws if
  /// that has failed, or the other rank is known to have gone.
  bool settled() const;

  /// Begins to send to the other rank, in stream order. `stream` gets the work before settled() is true;
  /// nothing else may be begun until then.
  void send(const void* from, std::size_t bytes, CUstream_st* stream);
  /// Likewise from the other rank; both name the same number of bytes.
  void receive(void* to, std::size_t bytes, CUstream_st* stream);

 private:
  void begun(int result, const char* call) const;

  const NcclFunctions& nccl_;
  const int other_;
  NcclCommunicator communicator_ = nullptr;
};

}  // namespace troupe
