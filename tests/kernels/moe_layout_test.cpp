// How a mixture of experts is laid out on a GPU: the ways of its products, and whose places come first.
#include <gtest/gtest.h>

#include "kernels/cuda/moe/layout.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::ampere;

// A rank that holds an eighth of the experts gets an eighth of the rows' choices: as many rows of each as
// without ranks.
TEST(ChooseMoe, ExpertParallelCountsTheRowsOfItsOwnExperts) {
  const WeightFormat int4{WeightKind::int4, DType::bf16};
  const auto layout = [&](int rows, int held, int shared) {
    const auto stack = [&](int outputs, int inputs) {
      return MatrixStack{{nullptr, int4, outputs, inputs}, held + shared};
    };
    return lay_out(Moe{.gate_up = stack(2 * 1792, 8192),
                       .down = stack(8192, 1792),
                       .experts = 64,
                       .held = held,
                       .shared = shared,
                       .top_k = 8,
                       .rows = rows},
                   kH200, nullptr);
  };
  for (const int rows : {1, 8, 100, 380, 390, 1000, 4000}) {
    const MoeLayout whole = layout(rows, 64, 0), part = layout(rows, 8, 0);
    EXPECT_EQ(part.gate_up.way, whole.gate_up.way) << rows;
    EXPECT_EQ(part.down.way, whole.down.way) << rows;
    EXPECT_EQ(part.gate_up.stream.tile_rows, whole.gate_up.stream.tile_rows) << rows;
  }
  EXPECT_EQ(layout(100, 8, 0).gate_up.way, LinearWay::stream) << "12 rows each";
  EXPECT_EQ(layout(1000, 8, 0).gate_up.way, LinearWay::unpacked) << "125 rows each";
  EXPECT_EQ(expected_places(100, 8, 2, 8, 64), 100 + 2 * 100) << "the shared slices get all rows";
  EXPECT_EQ(expected_places(1, 1, 0, 1, 64), 1);
}

// Slices of the shared experts run beside the router where their places do not depend on it, which only
// streams make use of.
TEST(ChooseMoe, SharedSlicesComeFirstWhereBothProductsStream) {
  const auto layout = [&](const WeightFormat& format, int rows, int shared, const GpuTraits& gpu) {
    const auto stack = [&](int outputs, int inputs) {
      return MatrixStack{{nullptr, format, outputs, inputs}, 64 + shared};
    };
    return lay_out(Moe{.gate_up = stack(2 * 1536, 2560),
                       .down = stack(2560, 1536),
                       .experts = 64,
                       .shared = shared,
                       .top_k = 6,
                       .rows = rows},
                   gpu, nullptr);
  };
  const WeightFormat int4{WeightKind::int4, DType::bf16}, fp8{WeightKind::fp8, DType::bf16};
  for (const WeightFormat& format : {WeightFormat(DType::bf16), int4}) {
    EXPECT_TRUE(layout(format, 1, 2, kH200).routing.shared_first);
    EXPECT_TRUE(layout(format, 64, 2, kH200).routing.shared_first);
    EXPECT_FALSE(layout(format, 4000, 2, kH200).routing.shared_first) << "many rows";
    EXPECT_FALSE(layout(format, 1, 0, kH200).routing.shared_first) << "no slices";
    EXPECT_FALSE(layout(format, 4000, 2, ampere()).routing.shared_first) << "tiles of many rows";
  }
  EXPECT_FALSE(layout(fp8, 1, 2, kH200).routing.shared_first) << "scales of x are not read past L1";
}

}  // namespace
}  // namespace troupe::kernels::cuda
