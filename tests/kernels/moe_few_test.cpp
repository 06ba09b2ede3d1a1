// How the products of experts of a few rows are cut, and which experts run that way.
#include "kernels/cuda/moe/few.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::ampere, test::invariant;

/// A layer's experts, or a rank's part of them.
struct FewExperts {
  const char* name;
  int hidden, width, experts, shared, top_k;
};
constexpr FewExperts kFewExperts[] = {{"21B", 2560, 1536, 64, 2, 6},
                                      {"VL-28B, vision experts", 2560, 512, 64, 2, 6},
                                      {"300B", 8192, 3584, 64, 0, 8},
                                      {"300B on 2 ranks", 8192, 1792, 64, 0, 8},
                                      {"300B on 4 ranks", 8192, 896, 64, 0, 8},
                                      {"300B on 8 ranks", 8192, 448, 64, 0, 8}};
constexpr WeightFormat kFewFormats[] = {
    DType::bf16, {WeightKind::int8, DType::bf16}, {WeightKind::int4, DType::bf16}};
constexpr int kMultiprocessorSharedBytes = 228 << 10, kSystemSharedBytes = 1 << 10;  // of an H200; of a block

void for_each_few(const auto& function) {
  for (const FewExperts& of : kFewExperts) {
    for (const WeightFormat& format : kFewFormats) {
      for (int rows = 1; rows <= most_few_rows(code_kind(format)); ++rows) {
        SCOPED_TRACE(std::string(of.name) + ", " + to_string(format) + ", rows " + std::to_string(rows));
        function(of, format, rows);
      }
    }
  }
}

few::GateUpPlan gate_up_plan_of(const FewExperts& of, const WeightFormat& format, int rows) {
  return few::gate_up_plan({.format = format,
                            .inputs = of.hidden,
                            .outputs = gate_up_outputs(of.width),
                            .rows = rows,
                            .top_k = of.top_k,
                            .shared = of.shared},
                           kH200);
}

Moe few_moe(const FewExperts& of, const WeightFormat& gate_up, const WeightFormat& down, int rows) {
  return {.gate_up = {{nullptr, gate_up, gate_up_outputs(of.width), of.hidden}, of.experts + of.shared},
          .down = {{nullptr, down, of.hidden, of.width}, of.experts + of.shared},
          .experts = of.experts,
          .shared = of.shared,
          .top_k = of.top_k,
          .rows = rows};
}

bool takes_few(const Moe& op, const GpuTraits& gpu = kH200) {
  const MoeLayout layout = lay_out(op, gpu, nullptr);
  EXPECT_EQ(layout.few, layout.routing.few);
  return layout.few;
}

TEST(MoeFew, BoxesCoverARow) {
  const WeightFormat bf16 = DType::bf16, int8{WeightKind::int8, DType::bf16},
                     int4{WeightKind::int4, DType::bf16};
  EXPECT_EQ(few::boxes_of(bf16, 2560), 40);
  EXPECT_EQ(few::boxes_of(int8, 2560), 20);
  EXPECT_EQ(few::boxes_of(int4, 2560), 10);
  EXPECT_EQ(few::boxes_of(int8, 448), 4) << "half a box at the end";
  EXPECT_EQ(few::boxes_of(int4, 896), 4);
  EXPECT_EQ(few::boxes_of(bf16, 32), 1);
  for_each_few([](const FewExperts& of, const WeightFormat& format, int) {
    for (const int inputs : {of.hidden, of.width}) {
      const int bytes = few::boxes_of(format, inputs) * few::kBoxRowBytes - row_bytes(format, inputs);
      EXPECT_GE(bytes, 0);
      EXPECT_LT(bytes, few::kBoxRowBytes);
    }
  });
}

TEST(MoeFew, WarpsOfGateUpShareAllBoxes) {
  for_each_few([](const FewExperts& of, const WeightFormat& format, int rows) {
    const few::GateUpPlan plan = gate_up_plan_of(of, format, rows);
    const int boxes = few::boxes_of(format, of.hidden);
    EXPECT_GE(plan.warps, 1);
    EXPECT_LE(plan.warps, few::kMostWarps);
    EXPECT_GE(plan.warps * plan.boxes, boxes);
    EXPECT_LT((plan.warps - 1) * plan.boxes, boxes) << "the last warp has nothing to do";
    EXPECT_TRUE(plan.boxes <= few::kGateUpHeld || plan.warps == few::kMostWarps)
        << "more warps would have all boxes under way";
    const int x = few::x_pitch(plan.boxes * 2 * operands_of(format));
    EXPECT_GE(x, plan.boxes * 2 * operands_of(format) * streaming::kChunkBytes) << "a warp's inputs of a row";
    EXPECT_GE(plan.shared_bytes, plan.warps * (few::kGateUpHeld * few::kBoxBytes + rows * x) +
                                     2 * plan.warps * rows * few::kOutputs * int(sizeof(float)))
        << "rings, rows of x and two buffers of sums";
    EXPECT_LE(plan.shared_bytes, kH200.block_shared_bytes);
  });
}

// Of shared slices, which run beside the routing, more blocks are no harm.
TEST(MoeFew, BlocksOfGateUpRunAtOnceUnlessTheirTilesAreTheMost) {
  int at_once = 0;
  for_each_few([&](const FewExperts& of, const WeightFormat& format, int rows) {
    const few::GateUpPlan plan = gate_up_plan_of(of, format, rows);
    EXPECT_GE(plan.tiles, 1);
    EXPECT_LE(plan.tiles, few::kMostTiles);
    if (of.shared > 0 || plan.tiles == few::kMostTiles) return;
    ++at_once;
    const int static_bytes = (few::kMostTiles * few::kOutputs + kMostFewRows) * int(sizeof(float));
    const int together = kMultiprocessorSharedBytes / (plan.shared_bytes + static_bytes + kSystemSharedBytes);
    const auto blocks = [&](int block_tiles) {
      const int tiles = gate_up_outputs(of.width) / few::kOutputs;
      return rows * of.top_k * ((tiles + block_tiles - 1) / block_tiles);
    };
    EXPECT_LE(blocks(plan.tiles), together * kH200.multiprocessors);
    if (plan.tiles > 1) {
      EXPECT_GT(blocks(plan.tiles - 1), together * kH200.multiprocessors) << "fewer would do";
    }
  });
  EXPECT_GE(at_once, 12) << "most of a model's parts without shared slices";
}

TEST(MoeFew, WarpsOfDownShareARowsExperts) {
  for_each_few([](const FewExperts& of, const WeightFormat& format, int) {
    const int experts = of.top_k + of.shared;
    const few::DownPlan plan = few::down_plan(format, of.width, experts);
    EXPECT_GE(plan.warps, 1);
    EXPECT_LE(plan.warps, std::min(few::kMostWarps, experts));
    const int x = few::boxes_of(format, of.width) * 2 * operands_of(format) * streaming::kChunkBytes;
    EXPECT_GE(plan.shared_bytes, plan.warps * (few::kDownHeld * few::kBoxBytes + x) +
                                     experts * few::kOutputs * int(sizeof(float)))
        << "rings, rows of activations and outputs";
    EXPECT_LE(plan.shared_bytes, kH200.block_shared_bytes);
  });
  EXPECT_EQ(few::down_plan(DType::bf16, 1536, 3).warps, 3);
  EXPECT_EQ(few::down_plan(DType::bf16, 1536, 20).warps, few::kMostWarps);
}

// Eight lanes that load 16 bytes each at a time read neighbouring rows: one and the next are 64 bytes apart
// in the 128 bytes of all banks.
TEST(MoeFew, NeighbouringRowsOfXAreInDifferentBanks) {
  for (int pieces = 1; pieces <= 128; ++pieces) {
    EXPECT_EQ(few::x_pitch(pieces) % 128, 64) << pieces;
    EXPECT_GE(few::x_pitch(pieces), pieces * 64);
  }
}

TEST(ChooseMoe, ExpertsOfAFewRowsHaveKernelsOfTheirOwn) {
  for_each_few([](const FewExperts& of, const WeightFormat& format, int rows) {
    Moe op = few_moe(of, format, format, rows);
    EXPECT_TRUE(takes_few(op));
    EXPECT_FALSE(takes_few(op, invariant())) << "a row's bits would depend on how many rows there are";
    GpuTraits generic_routing = kH200;
    generic_routing.avoided = {KernelWay::routing_clusters, KernelWay::routing_tiles};
    EXPECT_FALSE(takes_few(op, generic_routing)) << "the generic routing writes no list of experts";
    op.rows = kMostFewRows + 1;
    EXPECT_FALSE(takes_few(op));
    op.rows = rows;
    op.parts = true;
    EXPECT_TRUE(takes_few(op));
    op.held = op.experts / 8;
    op.gate_up.count = op.down.count = op.held + op.shared;
    EXPECT_TRUE(takes_few(op));
  });
}

TEST(ChooseMoe, OtherFormatsOfExpertsStreamAFewRows) {
  const WeightFormat int8{WeightKind::int8, DType::bf16}, int4{WeightKind::int4, DType::bf16};
  const FewExperts of = kFewExperts[0];
  for (int rows = 1; rows <= kMostFewRows; ++rows) {
    for (const WeightFormat& format :
         {WeightFormat(WeightKind::int4, DType::bf16, 64), WeightFormat(WeightKind::int4, DType::bf16, 128),
          WeightFormat(WeightKind::fp8, DType::bf16), WeightFormat(WeightKind::wint2, DType::bf16),
          WeightFormat(DType::f16), WeightFormat(DType::f32), WeightFormat(WeightKind::int8, DType::f16)})
      EXPECT_FALSE(takes_few(few_moe(of, format, format, rows))) << to_string(format) << ", " << rows;
    EXPECT_FALSE(takes_few(few_moe(of, int8, int4, rows))) << "one kernel for each format of both";
    const StaticInput scales[64];
    Moe w4a8 = few_moe({"300B", 8192, 3584, 64, 0, 8}, int4, int4, rows);
    EXPECT_TRUE(takes_few(w4a8));
    w4a8.gate_up_inputs = w4a8.down_inputs = scales;
    EXPECT_FALSE(takes_few(w4a8)) << "W4A8";
  }
}

/// The tail of a layer of the 21B, without memory.
MoeTail tail_of_21b(const WeightFormat& dense, const WeightFormat& experts, int rows) {
  static const float any = 0;  // choosers compare pointers with null
  static float memory = 0;
  const FewExperts& of = kFewExperts[0];
  const AddRmsNorm norm{.weight = &any, .rows = rows, .cols = of.hidden};
  MoeTail op{.attention_out = {.weight = {nullptr, dense, of.hidden, 20 * 128}, .rows = rows},
             .moe = few_moe(of, experts, experts, rows),
             .next = {.weight = {&memory, dense, 28 * 128, of.hidden},
                      .kv = {.dtype = DType::bf16, .layers = 1, .kv_heads = 4, .head_dim = 128},
                      .heads = 20,
                      .batch = {.count = rows, .rows = rows},
                      .norm = norm}};
  op.moe.norm = norm;
  return op;
}

TEST(ChooseMoeTail, NormsInHalvesOfAFewRows) {
  const WeightFormat bf16 = DType::bf16, int8{WeightKind::int8, DType::bf16},
                     int4{WeightKind::int4, DType::bf16}, fp8{WeightKind::fp8, DType::bf16};
  for (const auto& [dense, experts] : {std::pair{bf16, bf16}, {int8, int8}, {int8, int4}}) {
    for (int rows = 1; rows <= most_few_rows(code_kind(experts)); ++rows) {
      MoeTail op = tail_of_21b(dense, experts, rows);
      const MoeTailChoice choice = choose(op, kH200);
      EXPECT_TRUE(choice.halved && choice.next_halved) << to_string(experts) << ", " << rows;
      GpuTraits without = kH200;
      without.avoided.add(KernelWay::moe_few);
      EXPECT_FALSE(choose(op, without).halved);
      EXPECT_FALSE(choose(op, ampere()).halved) << "strips need clusters";
      op.next.weight.data = nullptr;
      EXPECT_TRUE(choose(op, kH200).halved && !choose(op, kH200).next_halved) << "the last layer";
    }
    EXPECT_FALSE(choose(tail_of_21b(dense, experts, 5), kH200).halved);
  }
  EXPECT_FALSE(choose(tail_of_21b(fp8, fp8, 1), kH200).halved);
  EXPECT_FALSE(choose(tail_of_21b(fp8, int4, 1), kH200).halved) << "no strips multiply fp8";
}

TEST(ChooseMoe, FewRowsNeedTheirSharedMemory) {
  const FewExperts whole{"300B, whole experts", 8192, 3584, 64, 0, 8};
  const Moe op = few_moe(whole, DType::bf16, DType::bf16, 1);
  EXPECT_TRUE(takes_few(op));
  GpuTraits small = ampere();
  small.block_shared_bytes = 99 << 10;
  EXPECT_FALSE(takes_few(op, small)) << "down's rows of x and rings are larger";
  EXPECT_TRUE(takes_few(few_moe(kFewExperts[0], DType::bf16, DType::bf16, 1), small));
}

}  // namespace
}  // namespace troupe::kernels::cuda
