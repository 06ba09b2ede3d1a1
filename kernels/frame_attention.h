#pragma once
// Attention of the vision tower: every patch of a frame to every other, without a cache.
#include <cstddef>

#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// Lays some rows of a frame out as FrameAttention reads them. The rows of `qkv` have heads * head_dim
/// queries, as many keys, and as many values. Queries and keys are rotated in fp32 by the row's angles, first
/// half of a head against second:
///   q'[i] = q[i] cos a_i - q[i + d/2] sin a_i,  q'[i + d/2] = q[i + d/2] cos a_i + q[i] sin a_i,  d =
///   head_dim
/// and rounded to dtype.
struct PackFrame {
  void* packed = nullptr;       ///< of the whole frame: packed_bytes(), or `qkv` where packs_in_place()
  void* qkv = nullptr;          ///< (count, padded(3 * heads * head_dim)) of dtype
  const float* rope = nullptr;  ///< RopeTable::out of these rows: (count, head_dim / 2, 2)
  DType dtype = DType::bf16;
  int rows = 0;  ///< of the frame
  int heads = 0;
  int head_dim = 0;  ///< even
  int first = 0;     ///< row of the frame; a multiple of kFrameQueries
  int count = 0;
};

/// For every query r and every head
///   out[r - first] = sum over the rows s of softmax over s of (scale * q'[r] · k'[s]), rounded to dtype, *
///   v[s].
struct FrameAttention {
  void* out = nullptr;           ///< (count, padded(heads * head_dim)) of dtype
  const void* packed = nullptr;  ///< by PackFrame: keys and values of all rows, queries of these
  DType dtype = DType::bf16;
  int rows = 0;  ///< of the frame
  int heads = 0;
  int head_dim = 0;
  float scale = 0;
  int first = 0;  ///< query; a multiple of kFrameQueries
  int count = 0;
};

/// Queries that a device may take together.
inline constexpr int kFrameQueries = 128;

/// Size of a frame's `packed`. If packs_in_place(), a PackFrame of all rows may have its qkv there.
std::size_t packed_bytes(const Cpu& device, const FrameAttention& op);
std::size_t packed_bytes(const Cuda& device, const FrameAttention& op);
constexpr bool packs_in_place(const Cpu&, const FrameAttention&) { return true; }
bool packs_in_place(const Cuda& device, const FrameAttention& op);

/// Equal pieces of memory.
struct MemoryLines {
  std::size_t offset = 0, bytes = 0, stride = 0;
  std::size_t count = 0;
};
/// Where PackFrame writes the keys and values of `count` rows from `first` on.
MemoryLines keys_and_values(const Cpu& device, const FrameAttention& op, int first, int count);
MemoryLines keys_and_values(const Cuda& device, const FrameAttention& op, int first, int count);

/// Rows of queries, keys and values one after the other: what packs in place.
constexpr std::size_t plain_row_bytes(const FrameAttention& op) {
  return static_cast<std::size_t>(padded(3 * op.heads * op.head_dim)) * size_of(op.dtype);
}
constexpr MemoryLines plain_keys_and_values(const FrameAttention& op, int first, int count) {
  const std::size_t part = static_cast<std::size_t>(op.heads * op.head_dim) * size_of(op.dtype);
  return {.offset = static_cast<std::size_t>(first) * plain_row_bytes(op) + part,
          .bytes = 2 * part,
          .stride = plain_row_bytes(op),
          .count = static_cast<std::size_t>(count)};
}

void run(Cpu& device, const PackFrame& op);
void run(Cuda& device, const PackFrame& op);
void run(Cpu& device, const FrameAttention& op);
void run(Cuda& device, const FrameAttention& op);

}  // namespace troupe::kernels
