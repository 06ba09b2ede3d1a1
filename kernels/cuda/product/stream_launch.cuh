#pragma once
// What the launches of streaming products have in common, of few rows and of tiles of many.
#include <cuda.h>

#include "kernels/cuda/product/kernel_row.cuh"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/product/stream_block.cuh"

namespace troupe::kernels::cuda::streaming {

/// A kernel that multiplies by StreamBlock. It takes the tensor maps of the weights and of x.
using StreamRow = KernelRow<StreamArgs, CUtensorMap, CUtensorMap>;

void launch_stream(Cuda& device, const Linear& linear, const StreamPlan& plan, const StreamRow& row);

}  // namespace troupe::kernels::cuda::streaming
