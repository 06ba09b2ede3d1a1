#pragma once
// What a block of a streaming product keeps beside its ring (stream_block.cuh): in shared memory up to eight
// rows of x, and the scales of fp8; in registers wint2's lines. Called by the warps that multiply.
#include <cstddef>

#include "kernels/cuda/product/stream_block.cuh"
#include "kernels/cuda/ptx.cuh"

namespace troupe::kernels::cuda::streaming {

/// How a thread loads its part of a resident x: eight threads for each row of a box, all rows at a time.
/// Computed before the wait.
struct WholeX {
  const char* from = nullptr;  ///< of the thread's first piece; gathered: of row 0
  ptx::SharedAddress to = 0;
  int row = 0, sixteen = 0, boxes_a_turn = 0;
};

template <class Block>
__device__ __forceinline__ WholeX place_whole_x(const Block& block) {
  const int chunk16 = static_cast<int>(threadIdx.x) % 8, place = static_cast<int>(threadIdx.x) / 8;
  const int rows = block.rows.count, log_rows = rows > 4 ? 3 : rows > 2 ? 2 : rows - 1;
  const int r = place & ((1 << log_rows) - 1), box = place >> log_rows;
  WholeX whole{
      .from = block.a.x + block.first_chunk * (Block::kOperands * kChunkBytes) + (box * 8 + chunk16) * 16,
      .to = block.x_at +
            static_cast<ptx::SharedAddress>((box * Block::kN + r) * kRowBytes + (chunk16 ^ r) * 16),
      .row = r,
      .sixteen = box * 8 + chunk16,
      .boxes_a_turn = Block::kWarps * 4 >> log_rows};
  if (block.known_x >= 0 || block.a.groups.gather == nullptr)
    whole.from += block.row_of_x(r) * block.a.x_row_bytes;
  ptx::materialize(whole.from);
  ptx::materialize(whole.to);
  return whole;
}
template <class Block>
__device__ __forceinline__ void bring_whole_x(const Block& block, WholeX whole) {
  if (whole.row < block.rows.count) {
    if (block.known_x < 0 && block.a.groups.gather != nullptr)
      whole.from += block.row_of_x(whole.row) * block.a.x_row_bytes;
    const int left = block.x_sixteens - block.first_chunk * (Block::kOperands * 4);
    for (; whole.sixteen < block.chunks * Block::kOperands * 4; whole.sixteen += whole.boxes_a_turn * 8) {
      ptx::copy_async_16_or_zero(whole.to, whole.from, whole.sixteen < left);
      whole.from += whole.boxes_a_turn * kRowBytes;
      whole.to += static_cast<ptx::SharedAddress>(whole.boxes_a_turn * Block::kN * kRowBytes);
    }
  }
  ptx::copy_async_wait_all();
  ptx::barrier_sync(1, Block::kWarps * 32);
}

/// Constants: read before the wait.
template <class Tile>
__device__ __forceinline__ StreamLines<Tile> read_lines(const StreamBlock<Tile>& block) {
  StreamLines<Tile> lines;
  if constexpr (Tile::Codes::kLines) {
    const auto* floats = reinterpret_cast<const float*>(block.weight() + block.a.scales_at);
#pragma unroll
    for (int i = 0; i < Tile::kTilesM * 2; ++i) {
      const int o = block.first_output + min(block.m0() + block.row() + i * 8, block.outputs - 1);
      lines.of[i / 2][i % 2] = typename Tile::Codes::Line(floats, block.a.ending.outputs, o);
    }
  }
  return lines;
}

/// fp8: requests the scales of the block's weights, constants.
template <class Block>
__device__ __forceinline__ void bring_weight_scales(const Block& block) {
  constexpr int kSixteens = Block::kM / kFp8ScaleOutputs / 4;
  const auto eights = static_cast<std::size_t>(block.a.ending.outputs / kFp8ScaleOutputs);
  const auto* from = reinterpret_cast<const float*>(block.weight() + block.a.scales_at) +
                     static_cast<std::size_t>(block.first_chunk / 2) * eights +
                     block.first_output / kFp8ScaleOutputs;
  for (int i = static_cast<int>(threadIdx.x); i < block.chunks / 2 * kSixteens; i += Block::kWarps * 32) {
    const int box = i / kSixteens, four = i % kSixteens * 4;
    if (four * kFp8ScaleOutputs < block.outputs)
      ptx::copy_async_16(block.weight_scales_at + static_cast<ptx::SharedAddress>(i * 16),
                         from + static_cast<std::size_t>(box) * eights + four);
  }
}
/// Requests the scales of the block's rows of x, and waits for all that these warps requested.
template <class Block>
__device__ __forceinline__ void bring_x_scales(const Block& block) {
  const auto boxes = static_cast<std::size_t>(block.a.chunks / 2);
  for (int i = static_cast<int>(threadIdx.x); i < block.chunks / 2 * Block::kN; i += Block::kWarps * 32) {
    const int r = i % Block::kN, box = i / Block::kN;
    if (r >= block.rows.count) continue;
    ptx::copy_async_4(
        block.x_scales_at + static_cast<ptx::SharedAddress>(i * 4),
        block.a.x_scales + block.row_of_x(r) * boxes + static_cast<std::size_t>(block.first_chunk / 2 + box));
  }
  ptx::copy_async_wait_all();
  ptx::barrier_sync(1, Block::kWarps * 32);
}

}  // namespace troupe::kernels::cuda::streaming
