// Where the packed rows of a frame lie that ranks cut between them: what one sends is what it has packed.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/attention/frame.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

TEST(FrameLayout, TheLinesOfARankAreItsKeysAndValues) {
  for (const int rows : {4, 128, 132, 300, 640}) {
    const FrameAttention op{.dtype = DType::bf16, .rows = rows, .heads = 3, .head_dim = kFrameDim};
    const int tiles = frame_tiles(rows);
    std::vector<int> owner(packed_bytes(op, kH200), -1);
    for (int rank = 0; rank < 2; ++rank) {
      const int first = rank == 0 ? 0 : tiles / 2 * kFrameTile;
      const int count = rank == 0 ? tiles / 2 * kFrameTile : rows - first;
      if (count == 0) continue;
      const MemoryLines lines = keys_and_values(op, first, count, kH200);
      for (std::size_t i = 0; i < lines.count; ++i) {
        for (std::size_t at = 0; at < lines.bytes; ++at) {
          int& byte = owner.at(lines.offset + i * lines.stride + at);
          ASSERT_EQ(byte, -1);
          byte = rank;
        }
      }
    }
    const std::size_t keys = frame_tile_at(1, 0, 0, op.heads, tiles);
    for (std::size_t at = 0; at < owner.size(); ++at)
      ASSERT_EQ(owner[at] >= 0, at >= keys) << rows << " " << at;
    for (int part = 1; part < 3; ++part) {
      for (int head = 0; head < op.heads; ++head) {
        for (int row = 0; row < rows; ++row) {
          const std::size_t tile = frame_tile_at(part, head, row / kFrameTile, op.heads, tiles);
          for (int chunk = 0; chunk < kFrameDim / 8; ++chunk) {
            const std::size_t at = tile + static_cast<std::size_t>(frame_chunk_at(row % kFrameTile, chunk));
            ASSERT_EQ(owner[at], row / kFrameTile >= tiles / 2 ? 1 : 0);
          }
        }
      }
    }
  }
}

// Eight rows are what ldmatrix reads at a time, and a half of a tile has the swizzle of the whole.
TEST(FrameLayout, EightRowsOfAChunkLieInDifferentBanks) {
  for (int row = 0; row < kFrameTile; row += 8) {
    for (int chunk = 0; chunk < kFrameDim / 8; ++chunk) {
      unsigned banks = 0;
      for (int r = row; r < row + 8; ++r) banks |= 1u << frame_chunk_at(r, chunk) / 16 % 8;
      EXPECT_EQ(banks, 0xffu) << row << " " << chunk;
      EXPECT_EQ(frame_chunk_at(row % 64, chunk) + row / 64 * 64 * 32, frame_chunk_at(row, chunk));
    }
  }
}

TEST(FrameLayout, TensorCoresTakeTheReleasedModelsHeadsOfSixteenBits) {
  FrameAttention op{.dtype = DType::bf16, .rows = 64, .heads = 16, .head_dim = kFrameDim};
  for (GpuTraits gpu : {kH200, test::ampere()}) {
    const bool hopper = gpu.features.wgmma;
    for (const DType dtype : {DType::bf16, DType::f16}) {
      op.dtype = dtype;
      EXPECT_EQ(choose(op, gpu), hopper ? FrameWay::wgmma : FrameWay::mma);
    }
    op.dtype = DType::f32;
    EXPECT_EQ(choose(op, gpu), FrameWay::plain);
    op.dtype = DType::bf16;
    op.head_dim = 64;
    EXPECT_EQ(choose(op, gpu), FrameWay::plain);
    op.head_dim = kFrameDim;
    gpu.avoided.add(KernelWay::frame_packed);
    EXPECT_EQ(choose(op, gpu), FrameWay::plain);
    EXPECT_EQ(packed_bytes(op, gpu), 64 * plain_row_bytes(op));
  }
  EXPECT_EQ(packed_bytes(op, test::ampere()), packed_bytes(op, kH200)) << "sizing counts a Hopper's";
}

}  // namespace
}  // namespace troupe::kernels::cuda
