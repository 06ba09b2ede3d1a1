// Up to how many rows experts of codes are unpacked in registers.
#include <gtest/gtest.h>

#include "kernels/cuda/product/choose.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::grouped;

constexpr int kExperts = 66;

LinearWay way(const WeightFormat& format, int rows_of_group, const GpuTraits& gpu = kH200) {
  LinearShape s = grouped(Ending::swiglu, 3072, 2560, rows_of_group * kExperts, kExperts);
  s.format = format;
  return choose(s, gpu).way;
}

TEST(ChooseUnpacked, ManyRowsAreExpandedInMemoryExceptForInt4WithScalesOfOutputs) {
  const WeightFormat int8(WeightKind::int8, DType::bf16), int4(WeightKind::int4, DType::bf16),
      groups(WeightKind::int4, DType::bf16, 64);
  for (const WeightFormat& format : {int8, int4, groups}) {
    EXPECT_EQ(way(format, kManyRowsOfUnpacked), LinearWay::stream) << to_string(format);
    EXPECT_EQ(way(format, kManyRowsOfUnpacked + 1), LinearWay::unpacked) << to_string(format);
    EXPECT_EQ(way(format, kMostRowsOfUnpacked), LinearWay::unpacked) << to_string(format);
  }
  EXPECT_EQ(way(int8, kMostRowsOfUnpacked + 1), LinearWay::expanded);
  EXPECT_EQ(way(groups, kMostRowsOfUnpacked + 1), LinearWay::expanded);
  EXPECT_EQ(way(int4, kMostRowsOfUnpacked + 1), LinearWay::unpacked);
}

TEST(ChooseUnpacked, OneWayReplacesTheOther) {
  GpuTraits gpu = kH200;
  gpu.avoided.add(KernelWay::product_expanded);
  const WeightFormat groups(WeightKind::int4, DType::bf16, 64);
  EXPECT_EQ(way(groups, 1000, gpu), LinearWay::unpacked);
  gpu.avoided = {KernelWay::product_unpacked};
  EXPECT_EQ(way(groups, 300, gpu), LinearWay::expanded);
}

}  // namespace
}  // namespace troupe::kernels::cuda
