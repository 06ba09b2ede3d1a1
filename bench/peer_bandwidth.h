#pragma once
// The rate at which a rank writes into another one's memory: the bound of exchanges.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "bench/rank_group.h"
#include "gpu/cuda.h"
#include "gpu/cuda_event.h"
#include "gpu/peer_memory.h"

namespace troupe::bench {

/// Bytes per second of a copy from rank 0's memory into rank 1's: the best of a few; 0 in the other ranks.
/// All ranks call it. Throws CudaError.
inline double peer_bandwidth(RankGroup& group, Cuda& device) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kTurns = 6;
  const SharedMemory from(device, kBytes), to(device, kBytes);
  const std::vector<PeerAddress> addresses = group.say(to.address());
  double best = 0;
  if (group.first()) {
    const Result<PeerMemory> next = PeerMemory::open(device, addresses[1]);
    if (!next.ok()) throw CudaError(next.status().message);
    CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
    for (int turn = 0; turn < kTurns; ++turn) {
      begin.record(device);
      device.copy(next->data(), from.data(), kBytes);
      end.record(device);
      end.wait();
      best = std::max(best, static_cast<double>(kBytes) / (end.milliseconds_since(begin) * 1e-3));
    }
  }
  group.meet();
  return best;
}

}  // namespace troupe::bench
