#pragma once
// How a streaming product is cut; for the chooser, the tests and the bench.
#include "kernels/cuda/product/linear.h"

namespace troupe::kernels::cuda {

struct StreamPlan {
  int tile_rows = 8;  ///< 8, 16, 32 or 64: rows of x that a block takes at once
  int boxes = 4;      ///< of 64 inputs in a stage
  int stages = 2;     ///< of a block's ring, at most
  int split = 1;      ///< blocks of a cluster that share a tile's inputs: 1, 2, 4 or 8
};

StreamPlan stream_plan(const Cuda& device, const Linear& linear);
void run_stream(Cuda& device, const Linear& linear, const StreamPlan& plan);

}  // namespace troupe::kernels::cuda
