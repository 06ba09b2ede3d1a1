#include "gpu/cuda_graph.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"

namespace troupe {
namespace {

// The captured graph, which is not needed once its executable form exists.
struct Recording {
  cudaGraph_t graph = nullptr;
  ~Recording() {
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

}  // namespace

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

CudaGraph CudaGraph::capture(Cuda& device, const std::function<void()>& work) {
  Recording recording;
  TROUPE_CUDA(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(device.stream(), &recording.graph);
    cudaGetLastError();
    throw;
  }
  TROUPE_CUDA(cudaStreamEndCapture(device.stream(), &recording.graph));
  CudaGraph made;
  TROUPE_CUDA(cudaGraphGetNodes(recording.graph, nullptr, &made.nodes_));
  TROUPE_CUDA(cudaGraphInstantiate(&made.graph_, recording.graph, 0));
  TROUPE_CUDA(cudaGraphUpload(made.graph_, device.stream()));
  return made;
}

void CudaGraph::launch(Cuda& device) const { TROUPE_CUDA(cudaGraphLaunch(graph_, device.stream())); }

}  // namespace troupe
