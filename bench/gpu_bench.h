#pragma once
// Shared by the GPU bench programs: timing of captured graphs, and the message if there is no GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gpu/cuda.h"
#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"

namespace troupe::bench {

/// The median time of this many launches in seconds, on the GPU's clock. The caller warms up.
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

/// True if there is a GPU. If not, prints to standard error why `program` is skipped.
inline bool gpu_is_there(const char* program) {
  const Status usable = cuda_usable();
  if (!usable.ok()) std::fprintf(stderr, "%s: skipped: %s\n", program, usable.message.c_str());
  return usable.ok();
}

/// True if the program was called with --quick.
inline bool has_flag(int argc, char** argv, const char* flag) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], flag) == 0) return true;
  }
  return false;
}
inline bool is_quick(int argc, char** argv) { return has_flag(argc, argv, "--quick"); }

}  // namespace troupe::bench
