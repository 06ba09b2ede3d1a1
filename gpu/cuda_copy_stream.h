#pragma once
// A stream of a GPU beside the one on which its ops run: for copies that run at the same time as steps.
#include <cstddef>
#include <string>

#include "gpu/cuda.h"

namespace troupe {

/// Calls of this thread are about that GPU from now on. Throws CudaError.
void use_gpu(int ordinal);
/// "0000:0f:00.0": no other GPU of this machine has it. Throws CudaError.
std::string pci_address_of(int ordinal);

/// One owner; the device outlives it. Copies run in the order of the calls. Nothing orders them against the
/// device's own stream but events (CudaEvent::delay). All but the destructor throw CudaError.
class CudaCopyStream {
 public:
  explicit CudaCopyStream(Cuda& device);
  ~CudaCopyStream();  ///< waits for its copies
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  /// Between device memory and pinned memory, in either direction, within device memory, or from an
  /// ImportedMemory.
  void copy(void* to, const void* from, std::size_t bytes);
  /// Likewise `rows` times `bytes`, which lie a pitch apart on each side. With one row pitches mean nothing.
  void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
                 std::size_t rows);
  void sync();
  CUstream_st* stream() const { return stream_; }

 private:
  CUstream_st* stream_ = nullptr;
};

/// Device memory without contents for the work of one stream, which outlives it. It is taken and given back
/// in the stream's order, so no other work waits for that. Throws CudaError where none is left.
class StreamMemory {
 public:
  StreamMemory(CudaCopyStream& stream, std::size_t bytes);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  CUstream_st* const stream_;
  std::byte* data_ = nullptr;
};

}  // namespace troupe
