// The reference checkpoints on several ranks, each a thread with a device of its own, compared with
// transformers' logits.
#include <unistd.h>

#include <thread>

#include "gpu/cpu.h"
#include "model/ranks/part.h"
#include "model/support/cut_checkpoint.h"
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
  const auto map = files.map_of(shard);
  for (const Status& s : {ranks.status(), spec.status(), map.status()}) {
    if (!s.ok()) status = s;
  }
  if (!status.ok()) return {};
  auto weights = Weights<Cpu>::load(device, *spec, dtype, *map);
  if (!weights) return status = weights.status(), std::vector<float>{};
  auto decoder = Decoder<Cpu>::make(device, *spec, dtype, std::move(*weights), test::kGoldenLimits, nullptr,
                                    ranks->get());
  if (!decoder) return status = decoder.status(), std::vector<float>{};
  std::vector<float> logits = test::logits_of(**decoder, golden);
  test::check_read_rows(**decoder, golden, logits, dtype);
  return logits;
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
// not a whole panel. Of four ranks two have no slice of moe_gqa4's shared experts, or all have a part of
// each.
constexpr RankCase kCases[] = {
    {{"gqa3_tied", "gqa3_tied"}, {2, false}},
    {{"gqa3_tied_paddle", "gqa3_tied"}, {2, false}},
    {{"gqa8_tied", "gqa8_tied"}, {2, false}},
    {{"gqa8_tied", "gqa8_tied"}, {4, false}},
    {{"gqa8_tied", "gqa8_tied"}, {8, false}},
    {{"moe_shared2", "moe_shared2"}, {2, false}},
    {{"moe_shared2", "moe_shared2"}, {2, true}},
    {{"moe_shared2_paddle", "moe_shared2"}, {2, false}},
    {{"moe_shared2_paddle", "moe_shared2"}, {2, true}},
    {{"moe_end", "moe_end"}, {2, false}},
    {{"moe_gqa4", "moe_gqa4"}, {4, false}},
    {{"moe_gqa4", "moe_gqa4"}, {4, true}},
    {{"moe_gqa4_paddle", "moe_gqa4"}, {4, false}},
    {{"moe_gqa4_paddle", "moe_gqa4"}, {4, true}},
    {{"moe_ranks8", "moe_ranks8"}, {2, false}},
    {{"moe_ranks8", "moe_ranks8"}, {4, false}},
    {{"moe_ranks8", "moe_ranks8"}, {8, false}},
    {{"moe_ranks8", "moe_ranks8"}, {4, true}},
    {{"moe_ranks8", "moe_ranks8"}, {8, true}},
};

INSTANTIATE_TEST_SUITE_P(All, RankGoldens,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         name_of);

// ---- Checkpoints that are cut for their ranks

struct Range {
  std::int64_t first;
  std::int64_t count;
};

/// Rows and columns of a tensor; those of several ranges side by side.
test::TestTensor piece(const test::TestTensor& whole, Range rows, const std::vector<Range>& columns) {
  const std::size_t element =
      whole.data.size() / static_cast<std::size_t>(whole.shape[0]) / static_cast<std::size_t>(whole.shape[1]);
  test::TestTensor made{whole.name, whole.dtype, {rows.count, 0}, {}};
  for (const Range& range : columns) made.shape[1] += range.count;
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    for (const Range& range : columns) {
      made.data.append(whole.data, static_cast<std::size_t>(row * whole.shape[1] + range.first) * element,
                       static_cast<std::size_t>(range.count) * element);
    }
  }
  return made;
}

/// A rank's part of a tensor with a -Paddle name, as those repositories are cut: fused ones by their parts,
/// the shared experts as the one MLP that they are.
test::TestTensor paddle_piece(const test::TestTensor& whole, const ModelSpec& spec, int rank, int ranks) {
  const auto of = [&](std::int64_t from, std::int64_t count) {
    return Range{from + count * rank / ranks, count / ranks};
  };
  const auto is = [&](const char* part) { return whole.name.find(part) != std::string::npos; };
  if (whole.shape.size() < 2) return whole;
  const std::int64_t rows = whole.shape[0], columns = whole.shape[1];
  if (is("embed_tokens") || is("o_proj") || is("down_proj")) return piece(whole, of(0, rows), {{0, columns}});
  if (is("up_gate_proj")) return piece(whole, {0, rows}, {of(0, columns / 2), of(columns / 2, columns / 2)});
  if (is("qkv_proj")) {
    const std::int64_t q = spec.q_width(), kv = spec.kv_width(), head = spec.head_dim;
    const auto of_kv = [&](std::int64_t from) {
      return Range{from + spec.kv_heads * rank / ranks * head, std::max<std::int64_t>(head, kv / ranks)};
    };
    return piece(whole, {0, rows}, {of(0, q), of_kv(q), of_kv(q + kv)});
  }
  return whole;
}

class CutCheckpoint : public ::testing::Test {
 protected:
  /// As cut(), of -Paddle names.
  void cut_paddle(const std::string& name, int ranks) {
    const auto from = test::golden_directory(name);
    const auto spec = read_spec(from);
    ASSERT_TRUE(spec.ok());
    std::filesystem::copy_file(from / "config.json", directory.path() / "config.json");
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<test::TestTensor> tensors = test::tensors_of(*Checkpoint::open(from));
      for (test::TestTensor& tensor : tensors) tensor = paddle_piece(tensor, *spec, rank, ranks);
      const auto folder = directory.path() / ("rank" + std::to_string(rank));
      std::filesystem::create_directory(folder);
      test::write_safetensors(folder / "model.safetensors", tensors);
    }
    options.directory = directory.path().string();
  }

  void cut(const std::string& name, int ranks) {
    const auto whole = open_model({.directory = test::golden_directory(name).string()});
    ASSERT_TRUE(whole.ok());
    test::cut_for_ranks(*whole, test::golden_directory(name), directory.path(), ranks);
    options.directory = directory.path().string();
  }

  void check(const std::string& golden_name, int count) {
    const auto memory = create_rank_memory(count);
    ASSERT_TRUE(memory.ok());
    const test::Golden golden = test::load_golden(golden_name);
    std::vector<std::vector<float>> logits(static_cast<std::size_t>(count));
    std::vector<Status> statuses(logits.size());
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < count; ++r) {
        ranks.emplace_back([&, r] {
          const auto at = static_cast<std::size_t>(r);
          const auto files = open_model(options, {r, count, false});
          if (!files) return void(statuses[at] = files.status());
          logits[at] = logits_of_rank({r, count, false}, *memory, *files, golden, DType::f32, statuses[at]);
        });
      }
    }
    ::close(*memory);
    for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status.message;
    test::check_logits(logits[0], golden, DType::f32);
  }

  test::TempDirectory directory;
  config::ModelOptions options;
};

TEST_F(CutCheckpoint, HasTheReferencesLogits) {
  cut("gqa8_tied", 4);  // of one KV head, which each of them has
  check("gqa8_tied", 4);
}

TEST_F(CutCheckpoint, OfExpertsUnderPaddleNamesHasTheReferencesLogits) {
  cut_paddle("moe_gqa4_paddle", 4);
  check("moe_gqa4", 4);
}

TEST_F(CutCheckpoint, OfSharedExpertsThatARankHasWholeHasTheReferencesLogits) {
  cut_paddle("moe_shared2_paddle", 2);
  check("moe_shared2", 2);
}

TEST_F(CutCheckpoint, OtherNumbersOfRanksAreRefused) {
  cut("gqa3_tied", 2);
  const auto refusal = [&](const Shard& shard) { return open_model(options, shard).status().message; };
  EXPECT_TRUE(open_model(options, {1, 2, false}).ok());
  EXPECT_NE(refusal({}).find("is cut for 2 ranks; start it with --tensor-parallel-size 2, got 1."),
            std::string::npos);
  EXPECT_NE(refusal({0, 3, false}).find("--tensor-parallel-size 2, got 3."), std::string::npos);
  EXPECT_NE(refusal({0, 2, true}).find("leave out --enable-expert-parallel"), std::string::npos);
  std::filesystem::remove(directory.path() / "rank1" / "model.safetensors");
  EXPECT_NE(refusal({1, 2, false}).find("rank1"), std::string::npos) << refusal({1, 2, false});
}

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
                      QuantisedWay{{"dense_gqa8", "kv_int8", {.kv_cache = config::KvCacheDType::int8}},
                                   {2, false}},
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
  EXPECT_TRUE(check_ranks(*files, {0, 2, false}).ok());
  files->spec.expert_intermediate = 2 * 96;
  const Status refused = check_ranks(*files, {0, 2, false});
  EXPECT_EQ(
      refused.message.find("--tensor-parallel-size 2 gives a rank 96 of moe_intermediate_size, which is no "
                           "multiple of the 64 that share a scale"),
      0u)
      << refused.message;
  EXPECT_TRUE(check_ranks(*files, {0, 2, true}).ok()) << "whole experts are not cut";
}

}  // namespace
}  // namespace troupe::model
