// Choosers on every card of the table, and on a Hopper's features with the multiprocessors of each: nothing
// is chosen that the card lacks or has no room for.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/cuda/attention/choose.h"
#include "kernels/cuda/attention/frame.h"
#include "kernels/cuda/attention/working_memory.h"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/cuda/sample/choose.h"
#include "kernels/product_shapes.h"

namespace troupe::kernels::cuda {
namespace {

using test::grouped, test::product;

constexpr std::array kMultiprocessors = {56, 72, 78, 92, 108, 128, 132};
constexpr std::array kRows = {1, 2, 4, 5, 8, 9, 16, 32, 33, 64, 65, 128, 256, 1024, 8192};

struct NamedGpu {
  std::string name;
  GpuTraits gpu;
};

std::vector<NamedGpu> gpus() {
  std::vector<NamedGpu> all;
  for (const Card& card : cards()) {
    if (card.capability >= 80) all.push_back({std::string(card.name), traits_of(card)});
  }
  for (const int count : kMultiprocessors) {
    GpuTraits gpu = kH200;
    gpu.multiprocessors = count;
    all.push_back({"a Hopper with " + std::to_string(count), gpu});
    gpu.features.wgmma = false;
    gpu.block_shared_bytes = 99 << 10;
    all.push_back({"clusters and 99 KiB, with " + std::to_string(count), gpu});
  }
  return all;
}

/// Products of ERNIE-4.5-0.3B, 21B-A3B and 300B-A47B, dense and of experts, in every format.
std::vector<LinearShape> products(int rows) {
  std::vector<LinearShape> shapes = {product(Ending::qkv, 2560, 1024, rows),
                                     product(Ending::add, 1024, 2048, rows),
                                     product(Ending::swiglu, 6144, 1024, rows),
                                     product(Ending::add, 1024, 3072, rows),
                                     product(Ending::qkv, 3584, 2560, rows),
                                     product(Ending::add, 2560, 2560, rows),
                                     product(Ending::swiglu, 24576, 2560, rows),
                                     product(Ending::add, 2560, 12288, rows),
                                     product(Ending::qkv, 10240, 8192, rows),
                                     product(Ending::add, 8192, 28672, rows),
                                     grouped(Ending::swiglu, 3072, 2560, rows * 6, 64),
                                     grouped(Ending::store_scaled, 2560, 1536, rows * 6, 64),
                                     grouped(Ending::swiglu, 7168, 8192, rows * 8, 64)};
  std::vector<LinearShape> all;
  for (const LinearShape& shape : shapes) {
    for (const WeightFormat& format :
         {WeightFormat(DType::bf16), WeightFormat{WeightKind::int8, DType::bf16},
          WeightFormat{WeightKind::int4, DType::bf16, 0}, WeightFormat{WeightKind::int4, DType::bf16, 64},
          WeightFormat{WeightKind::fp8, DType::bf16}}) {
      all.push_back(shape);
      all.back().format = format;
    }
  }
  return all;
}

TEST(CardTraits, AreThoseOfTheTable) {
  const auto of = [](const char* name) { return traits_of(*find_card(name)); };
  EXPECT_EQ(of("A100").features, GpuFeatures{});
  EXPECT_EQ(of("A100").multiprocessors, 108);
  EXPECT_EQ(of("A100").block_shared_bytes, 163 << 10);
  EXPECT_EQ(of("L20").features, GpuFeatures{.fp8 = true});
  EXPECT_EQ(of("L20").block_shared_bytes, 99 << 10);
  EXPECT_EQ(of("H20").features, kH200.features);
  EXPECT_EQ(of("H20").multiprocessors, 78);
  EXPECT_EQ(of("H200").block_shared_bytes, kH200.block_shared_bytes);
  EXPECT_NEAR(of("H200").memory_bytes_per_s, kH200.memory_bytes_per_s, 0.01 * kH200.memory_bytes_per_s);
}

TEST(ChooseByCard, ProductsFindAWayThatTheCardHas) {
  int chosen = 0;
  for (const NamedGpu& named : gpus()) {
    const GpuTraits& gpu = named.gpu;
    for (const int rows : kRows) {
      for (const LinearShape& shape : products(rows)) {
        const LinearChoice choice = choose(shape, gpu);
        const std::string where = named.name + ": " + to_string(choice);
        ASSERT_NE(choice.way, LinearWay::unsupported) << where;
        switch (choice.way) {
          case LinearWay::strips:
            ASSERT_TRUE(gpu.features.clusters) << where;
            ASSERT_LE(choice.strips.shared_bytes, gpu.block_shared_bytes) << where;
            ASSERT_LE(choice.strips.blocks, 2 * gpu.multiprocessors) << where << ": all run at once";
            ASSERT_GE(choice.strips.blocks / choice.strips.kernel.cluster * choice.strips.outputs,
                      padded(shape.outputs))
                << where;
            break;
          case LinearWay::slabs:
            ASSERT_TRUE(gpu.features.clusters) << where;
            ASSERT_LE(choice.slabs.shared_bytes, gpu.block_shared_bytes) << where;
            ASSERT_GE(choice.slabs.blocks / choice.slabs.kernel.cluster * choice.slabs.kernel.outputs,
                      padded(shape.outputs))
                << where;
            break;
          case LinearWay::stream:
            ASSERT_TRUE(gpu.features.clusters || choice.stream.cluster == 1) << where;
            EXPECT_LE(choice.stream.shared_bytes, gpu.block_shared_bytes) << where;
            ASSERT_GE(choice.stream.stages, 1) << where;
            break;
          case LinearWay::wgmma:
          case LinearWay::unpacked:
          case LinearWay::expanded: ASSERT_TRUE(gpu.features.wgmma) << where; break;
          case LinearWay::generic: ASSERT_TRUE(shape.format.fp8() && !gpu.features.fp8) << where; break;
          case LinearWay::unsupported: break;
        }
        ++chosen;
      }
    }
  }
  EXPECT_GT(chosen, 20'000);
}

TEST(ChooseByCard, AttentionHasTensorCoreKernelsOnEveryCard) {
  for (const NamedGpu& named : gpus()) {
    AttentionShape shape{
        .dtype = DType::bf16, .heads = 20, .kv_heads = 4, .head_dim = 128, .rows = 300, .sequences = 4};
    const AttentionChoice both = choose(shape, named.gpu);
    EXPECT_EQ(both.decodes, AttentionWay::decode) << named.name;
    EXPECT_EQ(both.pieces, AttentionWay::flash) << named.name;
    shape.most_tokens = 3;
    const bool few = named.gpu.block_shared_bytes >= kFewBytes;
    EXPECT_EQ(choose(shape, named.gpu).decodes, few ? AttentionWay::few : AttentionWay::decode) << named.name;
    shape.first = 1;
    const bool skips = named.gpu.block_shared_bytes >= kFewOneTokenBytes;
    EXPECT_EQ(choose(shape, named.gpu).decodes, few     ? AttentionWay::few
                                                : skips ? AttentionWay::decode
                                                        : AttentionWay::generic)
        << named.name;
    const FrameAttention frame{.dtype = DType::bf16, .rows = 64, .heads = 16, .head_dim = kFrameDim};
    EXPECT_EQ(choose(frame, named.gpu), named.gpu.features.wgmma ? FrameWay::wgmma : FrameWay::mma)
        << named.name;
  }
}

// Tiles of many rows where there is no wgmma, if they are enough to keep the card busy; two blocks for each
// multiprocessor where shared memory has room for them.
TEST(ChooseByCard, ManyRowsGoInTilesWhereThereIsNoWgmma) {
  for (const NamedGpu& named : gpus()) {
    const GpuTraits& gpu = named.gpu;
    for (const LinearShape& shape : products(8192)) {
      const StreamPlan plan = choose(shape, gpu).stream;
      const bool tiles = choose(shape, gpu).way == LinearWay::stream && plan.many_rows;
      ASSERT_EQ(tiles, !gpu.features.wgmma && (gpu.features.fp8 || !shape.format.fp8())) << named.name;
      if (!tiles) continue;
      ASSERT_EQ(plan.tile_rows, shape.format.quantised() ? 64 : 128);
      ASSERT_LE(plan.shared_bytes, gpu.block_shared_bytes);
      if (!shape.format.quantised() && gpu.block_shared_bytes == 163 << 10) {
        ASSERT_LE(2 * (plan.shared_bytes + 1024), 164 << 10);
      }
    }
    for (const LinearShape& shape : products(1)) ASSERT_FALSE(choose(shape, gpu).stream.many_rows);
    const LinearShape narrow = product(Ending::add, 2560, 2560, 128);
    EXPECT_FALSE(choose(narrow, gpu).stream.many_rows) << named.name << ": 20 tiles";
  }
}

TEST(ChooseByCard, DecodeAttentionHasABlockOrTwoForEachMultiprocessor) {
  for (const int count : kMultiprocessors) {
    GpuTraits gpu = kH200;
    gpu.multiprocessors = count;
    for (const int sequences : {1, 8, 9, 256}) {
      const Attention op{.kv = {.kv_heads = 4, .head_dim = 128},
                         .heads = 20,
                         .batch = {.count = sequences, .rows = sequences, .most_tokens = 1}};
      const DecodeGrid grid = decode_grid(DecodeRows::single, op, gpu);
      EXPECT_EQ(grid.clusters, sequences <= kDecodeFewSequences);
      EXPECT_EQ(grid.blocks, grid.clusters ? count / kDecodeCluster * kDecodeCluster : 2 * count) << count;
    }
  }
}

TEST(ChooseByCard, ClustersOnlyWhereTheyAre) {
  for (const NamedGpu& named : gpus()) {
    const bool clusters = named.gpu.features.clusters;
    EXPECT_EQ(choose(SampleShape{4, 103'424}, named.gpu).blocks, clusters ? kSampleCluster : 1) << named.name;
    const RoutingChoice routing =
        choose(RoutingShape{.dtype = DType::bf16, .experts = 64, .rows = 1}, named.gpu);
    EXPECT_EQ(routing.way == RoutingWay::clusters_16, clusters) << named.name;
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda
