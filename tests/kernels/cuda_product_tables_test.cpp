// The tables of the products' compiled kernels (kernels/cuda/product/kernel_row.cuh). Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <vector>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/moe/few.h"
#include "kernels/cuda/product/biased.h"
#include "kernels/cuda/product/compiled.h"
#include "kernels/cuda/product/launch_size.h"

namespace troupe::kernels::cuda {
namespace {

std::size_t tiles_with(WgmmaScales scales) {
  return static_cast<std::size_t>(
      std::ranges::count_if(kWgmmaTiles, [&](const WgmmaTile& tile) { return is_compiled(tile, scales); }));
}

TEST(ProductTables, HaveARowForEachKernelThatPlansName) {
  EXPECT_EQ(generic_kernels().size(), 12u) << "three types of activations, four kinds of weights";
  std::size_t strips = 0;
  for (const StripKernel& kernel : kStripKernels) strips += static_cast<std::size_t>(kernel.row_sets);
  EXPECT_EQ(strip_kernels().size(), strips);
  EXPECT_EQ(slab_kernels().size(), std::size(kSlabKernels));
  std::size_t streams = 0, tiles = 2;  // with a bias: bf16 and f16
  for (int kind = 0; kind < kCodeKinds; ++kind) {
    for (const StreamTileSize& tile : kStreamTiles)
      streams += has_stream_kernel(static_cast<CodeKind>(kind), tile);
    tiles += has_tile_kernel(static_cast<CodeKind>(kind));
  }
  EXPECT_EQ(stream_kernels().size(), streams);
  EXPECT_EQ(tile_kernels().size(), tiles);
  EXPECT_EQ(wgmma_kernels().size(), tiles_with(WgmmaScales::none) + 1) << "and one of f16";
  EXPECT_EQ(wgmma_fp8_kernels().size(), tiles_with(WgmmaScales::pairs) + tiles_with(WgmmaScales::blocks));
  EXPECT_EQ(biased_kernels().size(), 3u);
  EXPECT_EQ(unpacked_kernels().size(), 5u);
  EXPECT_EQ(expanded_kernels().size(), 3 + tiles_with(WgmmaScales::outputs));
  std::size_t few = 0;
  for (int kind = 0; kind < kCodeKinds; ++kind) few += has_few_kernel(static_cast<CodeKind>(kind));
  EXPECT_EQ(few_kernels().size(), 2 * few);
}

TEST(ProductTables, RowsDifferAndFitTheirCards) {
  std::set<const void*> seen;
  std::size_t count = 0;
  const auto expect_rows = [&](const std::vector<CompiledKernel>& rows, bool plans_shared_bytes) {
    for (const CompiledKernel& row : rows) {
      EXPECT_NE(row.kernel, nullptr);
      if (row.threads != 0)
        EXPECT_TRUE(row.threads >= 128 && row.threads <= 1024 && row.threads % 32 == 0) << row.threads;
      EXPECT_EQ(row.shared_bytes == 0, plans_shared_bytes);
      EXPECT_LE(row.shared_bytes, kH200.block_shared_bytes);
      seen.insert(row.kernel);
      ++count;
    }
  };
  for (const auto& rows :
       {generic_kernels(), strip_kernels(), slab_kernels(), stream_kernels(), tile_kernels(), few_kernels()})
    expect_rows(rows, true);
  for (const auto& rows : {wgmma_kernels(), wgmma_fp8_kernels(), biased_kernels(), unpacked_kernels()})
    expect_rows(rows, false);
  for (const CompiledKernel& row : expanded_kernels())
    expect_rows({row}, row.shared_bytes == 0);  // the kernels that expand have none
  EXPECT_EQ(seen.size(), count) << "a kernel stands in two rows";
}

}  // namespace
}  // namespace troupe::kernels::cuda
