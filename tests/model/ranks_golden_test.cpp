// The reference checkpoints on several ranks, each a thread with a device of its own, compared with
// transformers' logits.
#include <unistd.h>

#include <thread>

#include "gpu/cpu.h"
#include "model/ranks/part.h"
#include "model/support/golden.h"

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

}  // namespace
}  // namespace troupe::model
