#include <algorithm>

#include "gpu/buffer.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_event.h"

namespace troupe {

double copy_bandwidth(Cuda& device, std::size_t bytes) {
  constexpr int kTurns = 6;
  auto from = Buffer<Cuda>::make(device, bytes, "a copy"), to = Buffer<Cuda>::make(device, bytes, "a copy");
  if (!from || !to) throw CudaError("no memory for the copies that measure the GPU's bandwidth");
  CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  double best = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    begin.record(device);
    device.copy(to->data(), from->data(), bytes);
    end.record(device);
    end.wait();
    best = std::max(best, 2.0 * static_cast<double>(bytes) / (end.milliseconds_since(begin) * 1e-3));
  }
  return best;
}

}  // namespace troupe
