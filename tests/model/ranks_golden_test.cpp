// The reference checkpoints on several ranks, each a thread with a device of its own, compared with
// transformers' logits.
#include <unistd.h>

#include <thread>

#include "gpu/cpu.h"
#include "model/ranks/part.h"
#include "model/support/golden.h"
#include "model/support/quantised_ranks.h"

namespace troupe::model {
namespace {

using test::GoldenCase;

struct Way {
  int ranks;
  bool expert_parallel;
};

/// The logits of one rank; empty if something failed, which `status` says.
std::vector<float> logits_of_rank(const Shard& shard, int memory, const ModelFiles& files,
                                  const test::Golden& golden, DType dtype, Status& status) {
  Cpu device({.threads = 1, .pin = false});
  auto ranks = Collective<Cpu>::attach(memory, shard);
  const auto spec = part_of(files.spec, shard);
  const auto map = part_of(files.map, files.spec, shard);
  for (const Status& s : {ranks.status(), spec.status(), map.status()}) {
    if (!s.ok()) status = s;
  }
  if (!status.ok()) return {};
  auto weights = Weights<Cpu>::load(device, *spec, dtype, *map);
  if (!weights) return status = weights.status(), std::vector<float>{};
  auto decoder = Decoder<Cpu>::make(device, *spec, dtype, std::move(*weights), test::kGoldenLimits, nullptr,
                                    ranks->get());
  if (!decoder) return status = decoder.status(), std::vector<float>{};
  return test::logits_of(**decoder, golden);
}

struct RankCase {
  GoldenCase which;
  Way way;
};

class RankGoldens : public ::testing::TestWithParam<std::tuple<RankCase, DType>> {};

TEST_P(RankGoldens, EveryRankHasTheReferencesLogits) {
  const auto& [rank_case, dtype] = GetParam();
  const auto& [which, way] = rank_case;
  const test::Golden golden = test::load_golden(which.golden);
  const auto files = open_model({.directory = test::golden_directory(which.checkpoint).string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  const auto memory = create_rank_memory(way.ranks);
  ASSERT_TRUE(memory.ok());
  std::vector<std::vector<float>> logits(static_cast<std::size_t>(way.ranks));
  std::vector<Status> statuses(logits.size());
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < logits.size(); ++r) {
      ranks.emplace_back([&, r, dtype = dtype, way = way] {
        logits[r] = logits_of_rank({static_cast<int>(r), way.ranks, way.expert_parallel}, *memory, *files,
                                   golden, dtype, statuses[r]);
      });
    }
  }
  ::close(*memory);
  for (std::size_t r = 0; r < logits.size(); ++r) {
    ASSERT_TRUE(statuses[r].ok()) << statuses[r].message;
    EXPECT_EQ(logits[r], logits[0]) << "rank " << r << " has other bits";
  }
  test::check_logits(logits[0], golden, dtype);
}

std::string name_of(const ::testing::TestParamInfo<RankGoldens::ParamType>& info) {
  const auto& [rank_case, dtype] = info.param;
  return std::string(rank_case.which.checkpoint) + "_" + to_string(dtype) + "_" +
         std::to_string(rank_case.way.ranks) + (rank_case.way.expert_parallel ? "_experts" : "");
}

// With 4 and 8 ranks the KV head of gqa8 is on each of them. An expert of moe_shared2 is 24 wide: a half is
// not a whole panel.
constexpr RankCase kCases[] = {
    {{"gqa3_tied", "gqa3_tied"}, {2, false}},           {{"gqa3_tied_paddle", "gqa3_tied"}, {2, false}},
    {{"gqa8_tied", "gqa8_tied"}, {2, false}},           {{"gqa8_tied", "gqa8_tied"}, {4, false}},
    {{"gqa8_tied", "gqa8_tied"}, {8, false}},           {{"moe_shared2", "moe_shared2"}, {2, false}},
    {{"moe_shared2", "moe_shared2"}, {2, true}},        {{"moe_shared2_paddle", "moe_shared2"}, {2, false}},
    {{"moe_shared2_paddle", "moe_shared2"}, {2, true}}, {{"moe_end", "moe_end"}, {2, false}},
};

INSTANTIATE_TEST_SUITE_P(All, RankGoldens,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         name_of);

// ---- Quantised weights

struct QuantisedWay {
  test::QuantisedCase which;
  Way way;
};

class QuantisedRanks : public ::testing::TestWithParam<QuantisedWay> {};

TEST_P(QuantisedRanks, AnswerAsOneDoes) {
  const auto& [which, way] = GetParam();
  const auto files = test::quantised_files(which, config::Device::cpu);
  ASSERT_TRUE(files.ok()) << files.status().message;
  Cpu device({.threads = 2, .pin = false});
  const auto one = test::quantised_logits<Cpu>(device, *files, {}, nullptr);
  ASSERT_TRUE(one.ok()) << one.status().message;
  const auto memory = create_rank_memory(way.ranks);
  ASSERT_TRUE(memory.ok());
  std::vector<Result<std::vector<float>>> several(static_cast<std::size_t>(way.ranks), std::vector<float>{});
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < several.size(); ++r) {
      ranks.emplace_back([&, r, way = way] {
        Cpu own({.threads = 1, .pin = false});
        const Shard shard{static_cast<int>(r), way.ranks, way.expert_parallel};
        auto collective = Collective<Cpu>::attach(*memory, shard);
        if (!collective) return void(several[r] = collective.status());
        several[r] = test::quantised_logits(own, *files, shard, collective->get());
      });
    }
  }
  ::close(*memory);
  for (const auto& rank : several) {
    ASSERT_TRUE(rank.ok()) << rank.status().message;
    EXPECT_EQ(*rank, *several.front());
  }
  test::check_against_one(files->formats, *several.front(), *one);
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantisedRanks,
    ::testing::Values(QuantisedWay{{"dense_gqa8", "wint8", {.method = "wint8"}}, {2, false}},
                      QuantisedWay{{"dense_gqa8", "wint4", {.method = "wint4"}}, {4, false}},
                      QuantisedWay{{"dense_gqa8", "kv_int8", {.kv_cache = config::KvCacheDType::int8}}, {2, false}},
                      QuantisedWay{{"moe_gqa5", "wint4", {.method = "wint4"}}, {2, false}},
                      QuantisedWay{{"moe_gqa5", "wint8", {.method = "wint8"}}, {2, true}}),
    [](const auto& info) {
      return test::case_name(info.param.which) + "_" + std::to_string(info.param.way.ranks) +
             (info.param.way.expert_parallel ? "_experts" : "");
    });

// A scale's inputs have to be on one rank.
TEST(QuantisedRanksTest, CutsThroughAScaleAreRefused) {
  auto files = test::quantised_files({"moe_gqa5", "", {.method = "wint4", .group = 64}}, config::Device::cpu);
  ASSERT_TRUE(files.ok());
  EXPECT_TRUE(check_ranks(*files, config::Device::cpu, {0, 2, false}).ok());
  files->spec.expert_intermediate = 2 * 96;
  const Status refused = check_ranks(*files, config::Device::cpu, {0, 2, false});
  EXPECT_EQ(refused.message.find("--tensor-parallel-size 2 gives a rank 96 of moe_intermediate_size, which is no "
                                 "multiple of the 64 that share a scale"),
            0u)
      << refused.message;
  EXPECT_TRUE(check_ranks(*files, config::Device::cpu, {0, 2, true}).ok()) << "whole experts are not cut";
  EXPECT_NE(check_ranks(*files, config::Device::cuda, {0, 10, false}).message.find("the most ranks on GPUs"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe::model
