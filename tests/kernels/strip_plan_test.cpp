// How products of few rows are cut into strips: whatever the shape, what is planned can run.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/cuda/product/strip.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

LinearShape shape(Ending ending, int outputs, int inputs, int rows, bool consumes = false,
                  bool produces = false) {
  LinearShape s = test::product(ending, outputs, inputs, rows);
  s.consumes_halved_norm = consumes;
  s.produces_halved_norm = produces;
  return s;
}

TEST(StripPlan, WhatIsPlannedFitsAKernelAndAMultiprocessorTwice) {
  int planned = 0;
  for (const Ending ending : {Ending::qkv, Ending::swiglu, Ending::add, Ending::store_f32}) {
    for (const auto& [consumes, produces] : {std::pair{false, false}, {true, false}, {false, true}}) {
      for (int inputs = 32; inputs <= 4096; inputs += 32) {
        for (int outputs = 32; outputs <= 16384; outputs += 224) {
          for (const int rows : {1, 4, 5, 8, 9}) {
            const StripPlan plan =
                strip_plan(shape(ending, outputs, inputs, rows, consumes, produces), kH200);
            if (!plan) continue;
            ++planned;
            SCOPED_TRACE(std::to_string(outputs) + "x" + std::to_string(inputs) + ", " +
                         std::to_string(rows) + " rows");
            const StripKernel& kernel = plan.kernel;
            const int block_inputs = inputs / kernel.cluster;
            ASSERT_TRUE(rows <= kStripRows && block_inputs % strip_warp_inputs(kernel.kind) == 0 &&
                        ending != Ending::store_f32);
            ASSERT_TRUE(!consumes || ending != Ending::add);
            ASSERT_TRUE(!produces || ending == Ending::add);
            ASSERT_TRUE(kernel.cluster == 1 || ending != Ending::swiglu);
            ASSERT_TRUE(has_strip_kernel(kernel));
            ASSERT_TRUE(kernel.ending == ending && kernel.consumes_halved_norm == consumes);
            ASSERT_EQ(plan.row_sets, rows > kStripRowsPerSet ? 2 : 1);
            ASSERT_GE(kernel.tiles * kStripTileOutputs, plan.outputs);
            ASSERT_GE(kernel.slices * strip_slice_inputs(kernel.kind), block_inputs);
            ASSERT_EQ(plan.outputs % (ending == Ending::swiglu ? 16 : (produces ? 8 : 4) * kernel.cluster),
                      0);
            const int first = strip_weights_offset(kernel.cluster);
            if (kernel.cluster == 2) {
              ASSERT_LE(kStripRows * plan.outputs / 2 * 4, kStripInboxBytes);
            }
            const int weights_end = first + plan.outputs * (block_inputs * 2 + kStripPaddingBytes);
            ASSERT_LE(weights_end, plan.shared_bytes);
            ASSERT_LE(plan.shared_bytes, 113 << 10);
            ASSERT_TRUE(plan.sums_overwrite_weights || plan.sums_offset >= weights_end);
            ASSERT_GE(plan.sums_offset, first);
            ASSERT_LE(plan.sums_offset + kStripWarps * rows * (plan.outputs + 4) * 4, plan.shared_bytes);
            const int strips = (padded(outputs) + plan.outputs - 1) / plan.outputs;
            ASSERT_GE(plan.blocks, strips * kernel.cluster);
            ASSERT_LE(plan.blocks, 2 * kH200.multiprocessors);
            ASSERT_EQ(plan.blocks % kH200.multiprocessors, 0)
                << "a multiprocessor left free gets the next kernel's";
            ASSERT_EQ(plan.blocks % kernel.cluster, 0);
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

TEST(StripPlan, TheModelsShapes) {
  struct Cut {
    int outputs, cluster;
    bool operator==(const Cut&) const = default;
  };
  const auto cut = [](const LinearShape& s) {
    const StripPlan plan = strip_plan(s, kH200);
    return plan ? Cut{plan.outputs, plan.kernel.cluster} : Cut{0, 1};
  };
  constexpr Cut kNone{0, 1};
  for (const int rows : {1, 4, 5, 8}) {
    EXPECT_EQ(cut(shape(Ending::qkv, 2560, 1024, rows, true)), (Cut{20, 1}));
    EXPECT_EQ(cut(shape(Ending::add, 1024, 2048, rows, false, true)), (Cut{16, 2}));
    EXPECT_EQ(cut(shape(Ending::swiglu, 6144, 1024, rows, true)), (Cut{48, 1}));
    EXPECT_EQ(cut(shape(Ending::add, 1024, 3072, rows, false, true)), (Cut{16, 2}));
    EXPECT_EQ(cut(shape(Ending::qkv, 3584, 2560, rows)), (Cut{40, 2}));
    EXPECT_EQ(cut(shape(Ending::add, 2560, 2560, rows)), (Cut{40, 2}));
  }
  EXPECT_EQ(strip_plan(shape(Ending::add, 2560, 2560, 8), kH200).blocks, 132);
  GpuTraits odd = kH200;
  odd.multiprocessors = 131;
  EXPECT_EQ(strip_plan(shape(Ending::add, 2560, 2560, 8), odd).blocks, 132) << "whole clusters";
  LinearShape before_experts = shape(Ending::add, 2560, 2560, 4, false, true);
  before_experts.squares_per_sum = kSquaresPerSmallSum;
  EXPECT_EQ(cut(before_experts), (Cut{40, 2})) << "as without a norm";
  EXPECT_EQ(cut(shape(Ending::qkv, 3584, 2560, 4, true)), (Cut{40, 2})) << "behind experts of a few rows";
  EXPECT_EQ(cut(shape(Ending::qkv, 3584, 2560, 5, true)), kNone) << "the norm is a kernel of its own";
  EXPECT_EQ(cut(shape(Ending::add, 2560, 2560, 9)), kNone);
  EXPECT_EQ(cut(shape(Ending::add, 2560, 12288, 1)), kNone) << "more than shared memory holds";
  EXPECT_EQ(cut(shape(Ending::store_f32, 103424, 1024, 1)), kNone);
}

TEST(StripPlan, OnlyDenseProductsInBf16OnAHopper) {
  const LinearShape taken = shape(Ending::add, 1024, 1024, 1);
  EXPECT_TRUE(strip_plan(taken, kH200));
  LinearShape s = taken;
  s.groups = 8;
  EXPECT_FALSE(strip_plan(s, kH200));
  s = taken;
  s.format = DType::f16;
  EXPECT_FALSE(strip_plan(s, kH200));
  GpuTraits gpu = kH200;
  gpu.features.clusters = false;
  EXPECT_FALSE(strip_plan(taken, gpu));
  gpu = kH200;
  gpu.batch_invariant = true;
  EXPECT_FALSE(strip_plan(taken, gpu)) << "sums depend on the number of rows";
}

/// Products of models and of their shards on 1, 2, 4 and 8 GPUs (unsharded also with halved norms), and their
/// cuts on 132 multiprocessors: as they were when strips had a kernel for every cut. 0 outputs: no strips.
struct Considered {
  Ending ending;
  int outputs, inputs;
  bool consumes, produces;
  int block_outputs, cluster, blocks;
};
const Considered kConsidered[] = {
    // ERNIE-4.5-0.3B
    {Ending::qkv, 2560, 1024, false, false, 20, 1, 132},
    {Ending::add, 1024, 2048, false, false, 16, 2, 132},
    {Ending::swiglu, 6144, 1024, false, false, 48, 1, 132},
    {Ending::add, 1024, 3072, false, false, 16, 2, 132},
    {Ending::qkv, 2560, 1024, true, false, 20, 1, 132},
    {Ending::add, 1024, 2048, false, true, 16, 2, 132},
    {Ending::swiglu, 6144, 1024, true, false, 48, 1, 132},
    {Ending::add, 1024, 3072, false, true, 16, 2, 132},
    {Ending::qkv, 1280, 1024, false, false, 12, 1, 132},
    {Ending::add, 1024, 1024, false, false, 8, 1, 132},
    {Ending::swiglu, 3072, 1024, false, false, 32, 1, 132},
    {Ending::add, 1024, 1536, false, false, 8, 1, 132},
    {Ending::qkv, 768, 1024, false, false, 8, 1, 132},
    {Ending::add, 1024, 512, false, false, 8, 1, 132},
    {Ending::swiglu, 1536, 1024, false, false, 16, 1, 132},
    {Ending::add, 1024, 768, false, false, 8, 1, 132},
    {Ending::qkv, 512, 1024, false, false, 8, 1, 132},
    {Ending::add, 1024, 256, false, false, 8, 1, 132},
    {Ending::swiglu, 768, 1024, false, false, 16, 1, 132},
    {Ending::add, 1024, 384, false, false, 8, 1, 132},
    // ERNIE-4.5-21B-A3B
    {Ending::qkv, 3584, 2560, false, false, 40, 2, 264},
    {Ending::add, 2560, 2560, false, false, 40, 2, 132},
    {Ending::swiglu, 24576, 2560, false, false, 0, 1, 0},
    {Ending::add, 2560, 12288, false, false, 0, 1, 0},
    {Ending::add, 2560, 2560, false, true, 32, 2, 264},
    {Ending::swiglu, 24576, 2560, true, false, 0, 1, 0},
    {Ending::add, 2560, 12288, false, true, 0, 1, 0},
    {Ending::qkv, 1792, 2560, false, false, 32, 2, 132},
    {Ending::add, 2560, 1280, false, false, 20, 1, 132},
    {Ending::swiglu, 12288, 2560, false, false, 0, 1, 0},
    {Ending::add, 2560, 6144, false, false, 0, 1, 0},
    {Ending::qkv, 896, 2560, false, false, 16, 2, 132},
    {Ending::add, 2560, 640, false, false, 20, 1, 132},
    {Ending::swiglu, 6144, 2560, false, false, 0, 1, 0},
    {Ending::add, 2560, 3072, false, false, 32, 2, 264},
    // ERNIE-4.5-300B-A47B
    {Ending::qkv, 10240, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 8192, false, false, 0, 1, 0},
    {Ending::swiglu, 57344, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 28672, false, false, 0, 1, 0},
    {Ending::qkv, 10240, 8192, true, false, 0, 1, 0},
    {Ending::add, 8192, 8192, false, true, 0, 1, 0},
    {Ending::swiglu, 57344, 8192, true, false, 0, 1, 0},
    {Ending::add, 8192, 28672, false, true, 0, 1, 0},
    {Ending::qkv, 5120, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 4096, false, false, 0, 1, 0},
    {Ending::swiglu, 28672, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 14336, false, false, 0, 1, 0},
    {Ending::qkv, 2560, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 2048, false, false, 0, 1, 0},
    {Ending::swiglu, 14336, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 7168, false, false, 0, 1, 0},
    {Ending::qkv, 1280, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 1024, false, false, 44, 1, 264},
    {Ending::swiglu, 7168, 8192, false, false, 0, 1, 0},
    {Ending::add, 8192, 3584, false, false, 0, 1, 0},
    // the demo model
    {Ending::qkv, 960, 576, false, false, 8, 1, 132},
    {Ending::add, 576, 576, false, false, 8, 1, 132},
    {Ending::swiglu, 3072, 576, false, false, 32, 1, 132},
    {Ending::add, 576, 1536, false, false, 8, 1, 132},
    {Ending::qkv, 960, 576, true, false, 8, 1, 132},
    {Ending::add, 576, 576, false, true, 8, 1, 132},
    {Ending::swiglu, 3072, 576, true, false, 32, 1, 132},
    {Ending::add, 576, 1536, false, true, 8, 1, 132},
};

TEST(StripPlan, ConsideredShapesAreCutAsBefore) {
  for (const Considered& c : kConsidered) {
    for (const int rows : {1, 8}) {
      const StripPlan plan =
          strip_plan(shape(c.ending, c.outputs, c.inputs, rows, c.consumes, c.produces), kH200);
      SCOPED_TRACE(std::to_string(c.outputs) + "x" + std::to_string(c.inputs));
      EXPECT_EQ(plan.outputs, c.block_outputs);
      EXPECT_EQ(plan.blocks, c.blocks);
      if (plan) {
        EXPECT_EQ(plan.kernel.cluster, c.cluster);
      }
    }
  }
}

TEST(StripPlan, TheCopyIntervalFollowsTheBandwidth) {
  EXPECT_EQ(strip_copy_interval(kH200, false, 1), 53);
  EXPECT_EQ(strip_copy_interval(kH200, false, 8), 53);
  EXPECT_EQ(strip_copy_interval(kH200, true, 1), 70);
  EXPECT_EQ(strip_copy_interval(kH200, true, 2), 70);
  EXPECT_EQ(strip_copy_interval(kH200, true, 4), 85);
  EXPECT_EQ(strip_copy_interval(kH200, true, 8), 60);
  GpuTraits h100 = kH200;  // the same multiprocessors on a slower memory
  h100.memory_bytes_per_s = 3.35e12;
  EXPECT_EQ(strip_copy_interval(h100, false, 1), 76);
  EXPECT_EQ(strip_copy_interval(h100, true, 4), 122);
  EXPECT_EQ(strip_plan(shape(Ending::add, 2560, 2560, 8), h100).copy_interval_cycles, 76);
  GpuTraits h20 = kH200;  // fewer multiprocessors: each may ask for more
  h20.multiprocessors = 78;
  EXPECT_EQ(strip_copy_interval(h20, false, 1), 31);
}

}  // namespace
}  // namespace troupe::kernels::cuda
