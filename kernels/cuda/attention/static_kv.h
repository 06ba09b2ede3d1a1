#pragma once
// Static scales of values (kernels/static_kv.h) on a GPU. Those of keys: qkv_rope_kv_write_cuda.cu.
#include "gpu/cuda.h"
#include "kernels/static_kv.h"

namespace troupe::kernels::cuda {

/// Attention's outputs: (rows, padded(heads · head_dim)) of a dtype.
struct Heads {
  void* numbers = nullptr;
  DType dtype = DType::bf16;
  int rows = 0;
  int heads = 0;
  int kv_heads = 0;  ///< divides heads
  int head_dim = 0;  ///< even
};

/// Multiplies each number by channels[of its KV head and dimension] / 127, and rounds it.
void scale_outputs(Cuda& device, const Heads& heads, const float* channels);

}  // namespace troupe::kernels::cuda
