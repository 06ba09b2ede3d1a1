#pragma once
// Products and GPUs as choosers see them, for tests.
#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"

namespace troupe::kernels::cuda::test {

/// A dense product in bf16; heads are 128 wide.
inline LinearShape product(Ending ending, int outputs, int inputs, int rows) {
  return {.ending = ending, .outputs = outputs, .inputs = inputs, .rows = rows, .head_dim = 128};
}

inline LinearShape grouped(Ending ending, int outputs, int inputs, int rows, int groups) {
  LinearShape shape = product(ending, outputs, inputs, rows);
  shape.groups = groups;
  return shape;
}

/// An A100's features and shared memory.
inline GpuTraits ampere() {
  GpuTraits gpu = kH200;
  gpu.features = {};
  gpu.block_shared_bytes = 163 << 10;
  return gpu;
}

inline GpuTraits invariant() {
  GpuTraits gpu = kH200;
  gpu.batch_invariant = true;
  return gpu;
}

}  // namespace troupe::kernels::cuda::test
