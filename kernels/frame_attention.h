#pragma once
// Attention of the vision tower: every patch of a frame to every other, without a cache.
#include <cstddef>

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
/// The queries of a frame may be cut into several calls, the first of which rotates for all; between them
/// nothing else writes qkv or packed.
struct FrameAttention {
  void* out = nullptr;  ///< (rows, padded(heads * head_dim)) of dtype; not qkv
  void* qkv = nullptr;  ///< (rows, padded(3 * heads * head_dim)) of dtype; q and k may be rotated in place
  const float* rope = nullptr;  ///< RopeTable::out of these rows: (rows, head_dim / 2, 2)
  DType dtype = DType::bf16;
  int rows = 0;  ///< of the frame
  int heads = 0;
  int head_dim = 0;  ///< even
  float scale = 0;
  int first = 0;           ///< query of this call; a multiple of kFrameQueries
  int count = 0;           ///< of its queries; 0: all from `first`
  void* packed = nullptr;  ///< packed_bytes() of working memory; null where that is 0

  int queries() const { return count > 0 ? count : rows - first; }
};

/// Queries that a device may take together.
inline constexpr int kFrameQueries = 128;

/// What FrameAttention needs as `packed` for a frame of op.rows.
constexpr std::size_t packed_bytes(const Cpu&, const FrameAttention&) { return 0; }
std::size_t packed_bytes(const Cuda& device, const FrameAttention& op);

void run(Cpu& device, const FrameAttention& op);
void run(Cuda& device, const FrameAttention& op);

}  // namespace troupe::kernels
