// Which tiles products of unpacked codes have.
#include <gtest/gtest.h>

#include "kernels/cuda/product/choose.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::grouped, test::product;

TEST(ChooseUnpacked, TilesAreLowWhereHighOnesLeaveMultiprocessorsIdle) {
  LinearShape s = product(Ending::qkv, 3584, 2560, 512);
  s.head_dim = 128;
  s.format = {WeightKind::int8, DType::bf16};
  ASSERT_EQ(choose(s, kH200).way, LinearWay::unpacked);
  EXPECT_EQ(choose(s, kH200).unpacked.tile_rows, 64) << "112 tiles of 132 instead of 56";
  s.rows = 8192;
  EXPECT_EQ(choose(s, kH200).unpacked.tile_rows, 128);
  s.head_dim = 96;
  EXPECT_EQ(choose(s, kH200).way, LinearWay::stream) << "whole swizzled halves of heads";
  LinearShape experts = grouped(Ending::swiglu, 3072, 2560, 8192 * 8, 66);
  for (const WeightFormat& format :
       {WeightFormat(WeightKind::int4, DType::bf16), WeightFormat(WeightKind::int4, DType::bf16, 64)}) {
    experts.format = format;
    EXPECT_EQ(choose(experts, kH200).unpacked.tile_rows, 128);
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda
