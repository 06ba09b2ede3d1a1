// Which way products of wint2 run.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/cuda/product/choose.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::ampere, test::grouped, test::invariant, test::product;

TEST(ChooseWint2, ItIsDecodedInRegisters) {
  const WeightFormat wint2(WeightKind::wint2, DType::bf16);
  for (const auto& [outputs, inputs] : std::vector<std::pair<int, int>>{
           {3072, 2560}, {2560, 1536}, {7168, 8192}, {8192, 3584}, {8192, 896}}) {
    LinearShape experts = grouped(Ending::store_scaled, outputs, inputs, 0, 64);
    experts.format = wint2;
    for (const int rows : {8, 64 * 8, 64 * 32}) {
      experts.rows = rows;
      for (const GpuTraits& gpu : {kH200, ampere(), invariant()}) {
        const LinearChoice few = choose(experts, gpu);
        EXPECT_EQ(few.way, LinearWay::stream);
        EXPECT_LE(few.stream.shared_bytes, gpu.block_shared_bytes);
        EXPECT_GE(few.stream.block_boxes * 512, inputs) << "half a chunk at the end is read";
      }
      EXPECT_LE(2 * (choose(experts, kH200).stream.shared_bytes + 1024), 228 * 1024)
          << "decoding needs the warps of several blocks: " << to_string(choose(experts, kH200));
    }
    experts.rows = 64 * 128;
    EXPECT_EQ(choose(experts, kH200).way, LinearWay::unpacked);
    EXPECT_EQ(choose(experts, ampere()).way, LinearWay::stream);
    EXPECT_EQ(choose(experts, invariant()).way, LinearWay::stream);
    experts.ending = Ending::store_f32;
    EXPECT_EQ(choose(experts, kH200).way, LinearWay::stream)
        << "no other way takes this ending, and nothing is expanded";
  }
  LinearShape other = grouped(Ending::swiglu, 3072, 2560, 8, 64);
  other.format = {WeightKind::wint2, DType::f16};
  EXPECT_EQ(choose(other, kH200).way, LinearWay::generic);
  other = product(Ending::add, 2560, 2560, 8);
  other.format = wint2;
  EXPECT_EQ(choose(other, kH200).way, LinearWay::generic) << "experts alone are wint2";
}

}  // namespace
}  // namespace troupe::kernels::cuda
