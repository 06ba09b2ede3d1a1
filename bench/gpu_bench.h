#pragma once
// What the GPU's bench programs share: how a recorded piece of work is timed, and what they say without a
// GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gpu/cuda.h"
#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"

namespace troupe::bench {

/// The median of so many launches, on the GPU's clock; in seconds. Warm-up is the caller's.
inline double median_seconds(Cuda& device, const CudaGraph& graph, int launches) {
  std::vector<double> times;
  CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  for (int i = 0; i < launches; ++i) {
    begin.record(device);
    graph.launch(device);
    end.record(device);
    end.wait();
    times.push_back(end.milliseconds_since(begin) * 1e-3);
  }
  std::nth_element(times.begin(), times.begin() + launches / 2, times.end());
  return times[static_cast<std::size_t>(launches / 2)];
}

/// Whether there is a GPU to measure; if not, says on standard error why `program` is skipped.
inline bool gpu_is_there(const char* program) {
  const Status usable = cuda_usable();
  if (!usable.ok()) std::fprintf(stderr, "%s: skipped: %s\n", program, usable.message.c_str());
  return usable.ok();
}

/// Whether the program was called with --quick.
inline bool is_quick(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) return true;
  }
  return false;
}

}  // namespace troupe::bench
