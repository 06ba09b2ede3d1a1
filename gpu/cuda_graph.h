#pragma once
// Work that is captured once and launched as a whole: one call of the driver for all kernels of a step.
#include <cstddef>
#include <functional>
#include <utility>

#include "gpu/cuda.h"

struct CUgraphExec_st;  // cudaGraphExec_t

namespace troupe {

/// One owner. Holds the arguments of every launch as they were at the capture, addresses among them; the
/// memory at the addresses may change between launches. Throws CudaError.
class CudaGraph {
 public:
  CudaGraph() = default;
  CudaGraph(CudaGraph&& other) noexcept { *this = std::move(other); }
  CudaGraph& operator=(CudaGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  ~CudaGraph();

  /// Captures what `work` launches on device.stream(), without running it. `work` may not allocate on the
  /// device or wait for it. Programmatic launches become programmatic edges, plain launches plain ones.
  /// Uploads the graph.
  static CudaGraph capture(Cuda& device, const std::function<void()>& work);

  void launch(Cuda& device) const;

  std::size_t nodes() const { return nodes_; }

 private:
  CUgraphExec_st* graph_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace troupe
