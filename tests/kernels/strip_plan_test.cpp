// How products of few rows are cut into strips: whatever the shape, what is planned can run.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/cuda/product/strip.h"

namespace troupe::kernels::cuda {
namespace {

constexpr int kMultiprocessors = 132;

Linear linear(Ending ending, int outputs, int inputs, int rows, HalvedNorm takes = {},
              HalvedNorm leaves = {}) {
  return {.weight = {nullptr, DType::bf16, outputs, inputs},
          .rows = rows,
          .takes = takes,
          .leaves = leaves,
          .ending = ending,
          .kv = {.head_dim = 128}};
}

HalvedNorm half() {
  static int something;
  return {.weighted = &something};
}

TEST(StripPlan, WhatIsPlannedFitsAKernelAndAMultiprocessorTwice) {
  int planned = 0;
  for (const Ending ending : {Ending::qkv, Ending::swiglu, Ending::add, Ending::store_f32}) {
    for (const auto& [takes, leaves] : {std::pair{false, false}, {true, false}, {false, true}}) {
      for (int inputs = 32; inputs <= 4096; inputs += 32) {
        for (int outputs = 32; outputs <= 16384; outputs += 224) {
          for (const int rows : {1, 4, 5, 8, 9}) {
            const StripPlan plan =
                strip_plan(linear(ending, outputs, inputs, rows, takes ? half() : HalvedNorm{},
                                  leaves ? half() : HalvedNorm{}),
                           kMultiprocessors);
            if (plan.height == 0) continue;
            ++planned;
            SCOPED_TRACE(std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
                         std::to_string(rows) + " rows");
            const int part = inputs / plan.split;
            ASSERT_TRUE(rows <= kStripRows && part % kStripBox == 0 && ending != Ending::store_f32);
            ASSERT_TRUE(!takes || ending != Ending::add);
            ASSERT_TRUE(!leaves || ending == Ending::add);
            ASSERT_TRUE(plan.split == 1 || ending != Ending::swiglu);
            ASSERT_TRUE(has_strip_kernel(plan.split, plan.eights, plan.pieces, takes));
            ASSERT_EQ(plan.two_sets, rows > kStripSetRows);
            ASSERT_GE(plan.eights * 8, plan.height);
            ASSERT_GE(plan.pieces * kStripPiece, part);
            ASSERT_EQ(plan.height % (ending == Ending::swiglu ? 16 : (leaves ? 8 : 4) * plan.split), 0);
            const int first = strip_weights_at(plan.split);
            if (plan.split == 2) {
              ASSERT_LE(kStripRows * plan.height / 2 * 4, kStripInboxBytes);
            }
            const int weights_end = first + plan.height * (part * 2 + kStripPadding);
            ASSERT_LE(weights_end, plan.bytes);
            ASSERT_LE(plan.bytes, 113 << 10);
            ASSERT_TRUE(plan.sums_over_weights || plan.sums_at >= weights_end);
            ASSERT_GE(plan.sums_at, first);
            ASSERT_LE(plan.sums_at + kStripWarps * rows * (plan.height + 4) * 4, plan.bytes);
            const int strips = (padded(outputs) + plan.height - 1) / plan.height;
            ASSERT_GE(plan.blocks, strips * plan.split);
            ASSERT_LE(plan.blocks, 2 * kMultiprocessors);
            ASSERT_EQ(plan.blocks % kMultiprocessors, 0)
                << "a multiprocessor left free gets the next kernel's";
            ASSERT_EQ(plan.blocks % plan.split, 0);
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

TEST(StripPlan, TheModelsShapes) {
  struct Cut {
    int height, split;
    bool operator==(const Cut&) const = default;
  };
  const auto cut = [](const Linear& l) {
    const StripPlan plan = strip_plan(l, kMultiprocessors);
    return Cut{plan.height, plan.split};
  };
  constexpr Cut kNone{0, 1};
  for (const int rows : {1, 4, 5, 8}) {
    EXPECT_EQ(cut(linear(Ending::qkv, 2560, 1024, rows, half())), (Cut{20, 1}));
    EXPECT_EQ(cut(linear(Ending::add, 1024, 2048, rows, {}, half())), (Cut{16, 2}));
    EXPECT_EQ(cut(linear(Ending::swiglu, 6144, 1024, rows, half())), (Cut{48, 1}));
    EXPECT_EQ(cut(linear(Ending::add, 1024, 3072, rows, {}, half())), (Cut{16, 2}));
    EXPECT_EQ(cut(linear(Ending::qkv, 3584, 2560, rows)), (Cut{40, 2}));
    EXPECT_EQ(cut(linear(Ending::add, 2560, 2560, rows)), (Cut{40, 2}));
  }
  EXPECT_EQ(strip_plan(linear(Ending::add, 2560, 2560, 8), kMultiprocessors).blocks, 132);
  EXPECT_EQ(strip_plan(linear(Ending::add, 2560, 2560, 8), 131).blocks, 132) << "whole clusters";
  EXPECT_EQ(cut(linear(Ending::qkv, 3584, 2560, 1, half())), kNone) << "the norm is a kernel of its own";
  EXPECT_EQ(cut(linear(Ending::add, 2560, 2560, 9)), kNone);
  EXPECT_EQ(cut(linear(Ending::add, 2560, 12288, 1)), kNone) << "more than shared memory holds";
  EXPECT_EQ(cut(linear(Ending::store_f32, 103424, 1024, 1)), kNone);
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
