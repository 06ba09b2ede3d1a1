#pragma once
// Static scales of keys and values (kernels/static_kv.h) on a GPU.
#include "gpu/cuda.h"
#include "kernels/static_kv.h"

namespace troupe::kernels::cuda {

/// Queries, or attention's outputs: (rows, padded(heads · head_dim)) of a dtype.
struct Heads {
  void* numbers = nullptr;
  DType dtype = DType::bf16;
  int rows = 0;
  int heads = 0;
  int kv_heads = 0;  ///< divides heads
  int head_dim = 0;  ///< even
};

/// Multiplies each number by channels[of its KV head and dimension] / 127, and rounds it. The Cpu multiplies
/// queries before they are rounded for the first time; here they are rounded twice.
void scale_heads(Cuda& device, const Heads& heads, const float* channels);

}  // namespace troupe::kernels::cuda
