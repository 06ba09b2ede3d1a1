#pragma once
// A mark in a GPU's stream: whether the GPU has passed it, and when.
#include <utility>

#include "gpu/cuda.h"

struct CUevent_st;  // cudaEvent_t

namespace troupe {

/// One owner. All but the destructor throw CudaError, also for errors of the work before the mark.
class CudaEvent {
 public:
  enum class Timing { off, on };

  explicit CudaEvent(Timing timing = Timing::off);
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent();

  /// Sets the mark behind all work that the device was given so far.
  void record(Cuda& device);
  /// Likewise in another stream.
  void record(CUstream_st* stream);
  /// Work that `stream` is given from now on begins when the mark has been passed; the host does not wait.
  void delay(CUstream_st* stream) const;
  /// True if the GPU has completed all work before the mark, or the mark was never set.
  bool passed() const;
  void wait() const;
  /// From `start` to this mark, both with Timing::on and passed.
  double milliseconds_since(const CudaEvent& start) const;

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace troupe
