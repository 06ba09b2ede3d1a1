#pragma once
// Times the ways of a sum over ranks, on all of them together, when they have met. Nothing waits on the host.
#include <vector>

#include "gpu/buffer.h"
#include "gpu/cuda_event.h"
#include "kernels/exchange.h"
#include "model/ranks/sum_times.h"

namespace troupe::model {

/// 140 sums of up to 1 Mi numbers: 2 to 5 ms between GPUs on NVLink, some 30 where a GPU writes 25 GB/s.
/// Throws CudaError.
class SumMeter {
 public:
  /// Takes memory.
  explicit SumMeter(Cuda& device);

  /// Launches the sums, the same ones on every rank. `group`: of ranks that have met.
  void begin(const kernels::ExchangeGroup& group);
  /// True once all have ended.
  bool ended() const;
  /// After ended(): of each of kTimedSums. They mean nothing if the exchanges have given up.
  std::vector<SumTimes> times() const;

 private:
  struct Timed {
    CudaEvent begin{CudaEvent::Timing::on}, end{CudaEvent::Timing::on};
  };

  Cuda& device_;
  Buffer<Cuda> numbers_;
  std::vector<Timed> timed_;  // one step and two steps, of each size
};

}  // namespace troupe::model
