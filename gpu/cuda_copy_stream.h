#pragma once
// A stream of a GPU beside the one on which its ops run: for copies that run at the same time as steps.
#include <cstddef>

#include "gpu/cuda.h"

namespace troupe {

/// One owner; the device outlives it. Copies run in the order of the calls. Nothing orders them against the
/// device's own stream but events (CudaEvent::delay). All but the destructor throw CudaError.
class CudaCopyStream {
 public:
  explicit CudaCopyStream(Cuda& device);
  ~CudaCopyStream();  ///< waits for its copies
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  /// Between device memory and pinned memory, in either direction, or from an ImportedMemory.
  void copy(void* to, const void* from, std::size_t bytes);
  /// Likewise `rows` times `bytes`, which lie a pitch apart on each side. With one row pitches mean nothing.
  void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                 std::size_t rows);
  void sync();
  CUstream_st* stream() const { return stream_; }

 private:
  CUstream_st* stream_ = nullptr;
};

}  // namespace troupe
