#pragma once
// How a frame's queries, keys and values are packed for the tensor cores: plain C++ for both compilers.
//
// For each of the three and each head, tiles of 128 rows, zeros behind the last row. A tile is five groups of
// 16 dimensions, [80 / 16][128 rows][16], whose 16-byte chunk c of row r lies at c ^ (r / 4 % 2): wgmma's
// 32-byte swizzle, the widest that cuts 80 evenly. So a plain bulk copy of a tile is an operand, for keys
// with dimensions along k and for values with dimensions along n.
#include <cstddef>

#include "gpu/dtype.h"
#include "kernels/cuda/gpu_traits.h"
#include "kernels/frame_attention.h"

namespace troupe::kernels::cuda {

inline constexpr int kFrameDim = 80;
inline constexpr int kFrameTile = 128;  ///< rows
inline constexpr int kFrameGroups = kFrameDim / 16;
inline constexpr int kFrameGroupBytes = kFrameTile * 32;
inline constexpr int kFrameTileBytes = kFrameGroups * kFrameGroupBytes;
static_assert(kFrameQueries == kFrameTile);

constexpr int frame_tiles(int rows) { return (rows + kFrameTile - 1) / kFrameTile; }

/// Tile of `part` (0, 1, 2: queries, keys, values) of a head.
constexpr std::size_t frame_tile_at(int part, int head, int tile, int heads, int tiles) {
  return ((static_cast<std::size_t>(part) * static_cast<std::size_t>(heads) +
           static_cast<std::size_t>(head)) *
              static_cast<std::size_t>(tiles) +
          static_cast<std::size_t>(tile)) *
         kFrameTileBytes;
}

/// Byte of a tile where 8 dimensions from 8 * chunk of a row begin.
constexpr int frame_chunk_at(int row, int chunk) {
  return chunk / 2 * kFrameGroupBytes + row * 32 + (chunk % 2 ^ (row / 4 & 1)) * 16;
}

enum class FrameWay {
  plain,  ///< any head_dim and type; slow
  mma,    ///< packed, mma.sync (frame_mma.cuh)
  wgmma,  ///< packed, on Hopper (frame.cuh)
};

constexpr FrameWay choose(const FrameAttention& op, const GpuTraits& gpu) {
  if (!gpu.may(KernelWay::frame_packed) || op.dtype == DType::f32 || op.head_dim != kFrameDim)
    return FrameWay::plain;
  return gpu.features.wgmma ? FrameWay::wgmma : FrameWay::mma;
}

constexpr bool frame_is_packed(const FrameAttention& op, const GpuTraits& gpu) {
  return choose(op, gpu) != FrameWay::plain;
}

/// What the kernels of packed frames take.
struct FrameArgs {
  const std::byte* packed;
  void* out;
  int stride;  ///< elements of a row of out
  int rows, heads, tiles;
  int first_tile, queries;
  float scale_log2;  ///< scale * log2(e)
};

constexpr std::size_t packed_bytes(const FrameAttention& op, const GpuTraits& gpu) {
  return frame_is_packed(op, gpu) ? frame_tile_at(3, 0, 0, op.heads, frame_tiles(op.rows))
                                  : static_cast<std::size_t>(op.rows) * plain_row_bytes(op);
}

/// Of a head's keys, and of its values, the tiles of some rows are one piece.
constexpr MemoryLines keys_and_values(const FrameAttention& op, int first, int count, const GpuTraits& gpu) {
  if (!frame_is_packed(op, gpu)) return plain_keys_and_values(op, first, count);
  const int tiles = frame_tiles(op.rows);
  return {.offset = frame_tile_at(1, 0, first / kFrameTile, op.heads, tiles),
          .bytes = static_cast<std::size_t>(frame_tiles(count)) * kFrameTileBytes,
          .stride = static_cast<std::size_t>(tiles) * kFrameTileBytes,
          .count = 2 * static_cast<std::size_t>(op.heads)};
}

}  // namespace troupe::kernels::cuda
