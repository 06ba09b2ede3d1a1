// How products of few rows are cut into strips: whatever the shape, what is planned can run.
#include <gtest/gtest.h>

#include "kernels/cuda/strip.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kMultiprocessors = 132;

Linear linear(Ending ending, int outputs, int inputs, int rows, const float* norm = nullptr) {
  return {.weight = {nullptr, DType::bf16, outputs, inputs},
          .rows = rows,
          .norm = {.weight = norm, .cols = inputs},
          .ending = ending,
          .kv = {.head_dim = 128}};
}

TEST(StripPlan, WhatIsPlannedFitsAKernelAndAMultiprocessorTwice) {
  constexpr float kWeight = 1;
  int planned = 0;
  for (const Ending ending : {Ending::qkv, Ending::swiglu, Ending::add, Ending::store_f32}) {
    for (const float* norm : {static_cast<const float*>(nullptr), &kWeight}) {
      for (int inputs = 32; inputs <= 4096; inputs += 32) {
        for (int outputs = 32; outputs <= 16384; outputs += 224) {
          for (const int rows : {1, 4, 5, 8, 9}) {
            const StripPlan plan = strip_plan(linear(ending, outputs, inputs, rows, norm), kMultiprocessors);
            if (plan.height == 0) continue;
            ++planned;
            ASSERT_TRUE(rows <= kStripRows && inputs % kStripBox == 0 && ending != Ending::store_f32);
            ASSERT_TRUE(norm == nullptr || ending != Ending::add);
            ASSERT_TRUE(has_strip_kernel(plan.eights, plan.pieces, plan.two_sets, norm != nullptr))
                << outputs << "x" << inputs << ", " << rows << " rows";
            ASSERT_EQ(plan.two_sets, rows > kStripSetRows);
            ASSERT_GE(plan.eights * 8, plan.height);
            ASSERT_GE(plan.pieces * kStripPiece, inputs);
            ASSERT_EQ(plan.height % (ending == Ending::swiglu ? 16 : 4), 0);
            ASSERT_LE(plan.bytes, 113 << 10);
            const int weights_end = kStripHeaderBytes + (norm != nullptr ? inputs * 4 : 0) +
                                    plan.height * (inputs * 2 + kStripPadding);
            ASSERT_LE(weights_end, plan.bytes);
            ASSERT_TRUE(plan.sums_over_weights || plan.sums_at >= weights_end);
            ASSERT_LE(plan.sums_at + kStripWarps * rows * (plan.height + 4) * 4, plan.bytes);
            ASSERT_LE((padded(outputs) + plan.height - 1) / plan.height, 2 * kMultiprocessors);
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

TEST(StripPlan, TheModelsShapes) {
  const auto height = [](const Linear& l) { return strip_plan(l, kMultiprocessors).height; };
  constexpr float kWeight = 1;
  EXPECT_EQ(height(linear(Ending::qkv, 2560, 1024, 1, &kWeight)), 20);
  EXPECT_EQ(height(linear(Ending::add, 1024, 2048, 8)), 8);
  EXPECT_EQ(height(linear(Ending::swiglu, 6144, 1024, 8, &kWeight)), 48);
  EXPECT_EQ(height(linear(Ending::add, 1024, 3072, 4)), 8);
  EXPECT_EQ(height(linear(Ending::add, 1024, 3072, 5)), 0) << "every block would read 48 KiB of x";
  EXPECT_EQ(height(linear(Ending::qkv, 3584, 2560, 1)), 20);
  EXPECT_EQ(height(linear(Ending::qkv, 3584, 2560, 1, &kWeight)), 0) << "the norm is a kernel of its own";
  EXPECT_EQ(height(linear(Ending::add, 2560, 2560, 4)), 20);
  EXPECT_EQ(height(linear(Ending::store_f32, 103424, 1024, 1)), 0);
}

TEST(StripPlan, ANormThatAddsOrPicksIsMadeBefore) {
  constexpr float kWeight = 1;
  const std::int32_t pick = 0;
  Linear l = linear(Ending::qkv, 2560, 1024, 1, &kWeight);
  l.norm.add = &kWeight;
  EXPECT_EQ(strip_plan(l, kMultiprocessors).height, 0);
  l.norm.add = nullptr;
  l.norm.pick = &pick;
  EXPECT_EQ(strip_plan(l, kMultiprocessors).height, 0);
}

TEST(StripPlan, OnlyDenseProductsInBf16) {
  Linear l = linear(Ending::add, 1024, 1024, 1);
  EXPECT_GT(strip_plan(l, kMultiprocessors).height, 0);
  const std::int32_t offsets = 0;
  l.groups.offsets = &offsets;
  EXPECT_EQ(strip_plan(l, kMultiprocessors).height, 0);
  l.groups.offsets = nullptr;
  l.weight.dtype = DType::f16;
  EXPECT_EQ(strip_plan(l, kMultiprocessors).height, 0);
}

}  // namespace
}  // namespace troupe::kernels::cuda
