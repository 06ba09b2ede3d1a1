#pragma once
// Attention of the vision tower: every patch of a frame to every other, without a cache.
#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// The rows of `qkv` have heads * head_dim queries, as many keys, and as many values. Queries and keys are
/// rotated in fp32 by the row's angles, first half of a head against second:
///   q'[i] = q[i] cos a_i - q[i + d/2] sin a_i,  q'[i + d/2] = q[i + d/2] cos a_i + q[i] sin a_i,  d =
///   head_dim
/// and rounded to dtype. Then for every head
///   out[r] = sum over the rows s of softmax over s of (scale * q'[r] · k'[s]), rounded to dtype, * v[s].
struct FrameAttention {
  void* out = nullptr;  ///< (rows, padded(heads * head_dim)) of dtype; not qkv
  void* qkv = nullptr;  ///< (rows, padded(3 * heads * head_dim)) of dtype; q and k are rotated in place
  const float* rope = nullptr;  ///< RopeTable::out of these rows: (rows, head_dim / 2, 2)
  DType dtype = DType::bf16;
  int rows = 0;  ///< of the frame
  int heads = 0;
  int head_dim = 0;  ///< even
  float scale = 0;
};

void run(Cpu& device, const FrameAttention& op);

}  // namespace troupe::kernels
