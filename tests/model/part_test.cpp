// What each rank holds of a model: shapes, tensors and bytes.
#include "model/ranks/part.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/checkpoint/model_files.h"
#include "model/support/files.h"
#include "model/support/shapes.h"

namespace troupe::model {
namespace {

std::string refusal(const ModelSpec& spec, const Shard& shard) {
  const auto part = part_of(spec, shard);
  return part.ok() ? "" : part.status().message;
}

TEST(Part, ShapesOfTheRanks) {
  const ModelSpec spec = test::large_mixture();
  const auto second = part_of(spec, {1, 2});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->heads, 10);
  EXPECT_EQ(second->kv_heads, 2);
  EXPECT_EQ(second->intermediate, 6144);
  EXPECT_EQ(second->expert_intermediate, 768);
  EXPECT_EQ(second->experts, 64);
  EXPECT_EQ(second->experts_held(), 64);
  EXPECT_EQ(second->vocab, spec.vocab);
  EXPECT_EQ(second->held_tokens.first, 51712);
  EXPECT_EQ(second->tokens_held(), 51712);

  const auto whole_experts = part_of(spec, {3, 4, true});
  ASSERT_TRUE(whole_experts.ok());
  EXPECT_EQ(whole_experts->expert_intermediate, 1536);
  EXPECT_EQ(whole_experts->held_experts.first, 48);
  EXPECT_EQ(whole_experts->experts_held(), 16);
  EXPECT_EQ(whole_experts->shared_experts, 1);
  EXPECT_EQ(part_of(spec, {0, 4, true})->shared_experts, 0) << "two slices for four ranks";

  ModelSpec few = test::small_ernie();
  EXPECT_EQ(part_of(few, {5, 8})->kv_heads, 1) << "two KV heads on eight ranks";
}

TEST(Part, WhatCannotBeCutIsNamed) {
  const ModelSpec spec = test::large_mixture();
  EXPECT_EQ(refusal(spec, {0, 3}),
            "num_attention_heads is 20, which --tensor-parallel-size 3 does not divide.");
  EXPECT_EQ(refusal(spec, {0, 10}),
            "num_key_value_heads is 4, which --tensor-parallel-size 10 does not divide.");
  EXPECT_NE(refusal(spec, {0, 64}).find("allowed are 1 to 32"), std::string::npos);
  ModelSpec odd = spec;
  odd.experts = 63;
  EXPECT_EQ(refusal(odd, {0, 2, true}),
            "moe_num_experts is 63, which --tensor-parallel-size 2 does not divide.");
  EXPECT_EQ(refusal(odd, {0, 2}), "");
  odd.expert_intermediate = 1535;
  EXPECT_EQ(refusal(odd, {0, 2}),
            "moe_intermediate_size is 1535, which --tensor-parallel-size 2 does not divide.");
  odd.intermediate = 77;
  EXPECT_EQ(refusal(odd, {0, 2}), "intermediate_size is 77, which --tensor-parallel-size 2 does not divide.");
}

TEST(Part, TokensAreCutAtWholePanels) {
  ModelSpec spec = test::small_ernie();
  spec.vocab = 259;
  EXPECT_EQ(token_ranges(spec, 4), (std::vector<int>{0, 64, 128, 192, 259}));
  EXPECT_EQ(token_ranges(spec, 1), (std::vector<int>{0, 259}));
}

/// How many ranks hold each element of each weight.
class Coverage {
 public:
  explicit Coverage(const TensorMap& map) {
    for (const WeightSource& source : map.sources) at(source).assign(elements_of(source), 0);
  }
  static std::size_t elements_of(const WeightSource& s) {
    std::size_t count = 1;
    for (const auto extent : s.tensor->shape) count *= static_cast<std::size_t>(extent);
    return count;
  }
  std::vector<int>& at(const WeightSource& source) { return counts_[source.name]; }
  void add(const WeightSource& s) {
    std::vector<int>& counts = at(s);
    const int lines = s.transposed ? s.inputs : s.outputs, line = s.transposed ? s.outputs : s.inputs;
    for (int l = 0; l < lines; ++l) {
      for (int i = 0; i < line; ++i) ++counts.at(static_cast<std::size_t>(s.first + l * s.stride + i));
    }
  }
  const std::map<std::string, std::vector<int>>& counts() const { return counts_; }

 private:
  std::map<std::string, std::vector<int>> counts_;
};

class PartOfCheckpoint : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(PartOfCheckpoint, EveryElementIsReadByOneRankAndNormsByAll) {
  const auto [name, expert_parallel] = GetParam();
  const auto files = open_model({.directory = test::golden_directory(name).string()});
  ASSERT_TRUE(files.ok());
  Coverage coverage(files->map);
  std::uint64_t whole = 0, largest = 0;
  for (const WeightSource& source : files->map.sources) whole += source.bytes();
  for (int rank = 0; rank < 2; ++rank) {
    const auto map = part_of(files->map, files->spec, {rank, 2, expert_parallel});
    ASSERT_TRUE(map.ok()) << map.status().message;
    std::uint64_t bytes = 0;
    for (const WeightSource& source : map->sources) {
      coverage.add(source);
      bytes += source.bytes();
    }
    largest = std::max(largest, bytes);
  }
  for (const auto& [tensor, counts] : coverage.counts()) {
    const bool whole_on_each = tensor.find("norm") != std::string::npos ||
                               tensor.find("mlp.gate.") != std::string::npos ||
                               tensor.find("bias") != std::string::npos;
    for (const int count : counts) ASSERT_EQ(count, whole_on_each ? 2 : 1) << tensor;
  }
  EXPECT_LT(static_cast<double>(largest), 0.55 * static_cast<double>(whole))
      << "a rank reads its share alone";
}

INSTANTIATE_TEST_SUITE_P(All, PartOfCheckpoint,
                         ::testing::Values(std::tuple("gqa3_tied", false),
                                           std::tuple("gqa3_tied_paddle", false),
                                           std::tuple("moe_shared2", false), std::tuple("moe_shared2", true),
                                           std::tuple("moe_shared2_paddle", false),
                                           std::tuple("moe_shared2_paddle", true)));

}  // namespace
}  // namespace troupe::model
