// Several ranks on GPUs, each a process. Where there are fewer GPUs than ranks they share one and take turns.
#include <algorithm>
#include <sstream>

#include "gpu/cuda.h"
#include "gpu/gpu_like.h"
#include "gpu/nccl.h"
#include "gpu/peer_memory.h"
#include "model/cuda/executor.h"
#include "model/ranks/exchange_way.h"
#include "model/ranks/part.h"
#include "model/support/cuda_party.h"
#include "model/support/engine.h"
#include "model/support/golden.h"
#include "model/support/quantised_ranks.h"

namespace troupe::model {
namespace {

using test::GoldenCase;
using test::Party;
using test::RankProcess;

// Ranks that share a GPU take turns of some milliseconds.
constexpr Duration kPatience = std::chrono::minutes(5);

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

TEST_F(CudaRanks, DISABLED_RankOfAGolden) {
  const RankProcess process = RankProcess::mine();
  std::istringstream words(process.what);
  std::string checkpoint, golden_name;
  int dtype = 0;
  words >> checkpoint >> golden_name >> dtype;
  const test::Golden golden = test::load_golden(golden_name);
  const auto files = open_model({.directory = test::golden_directory(checkpoint).string()});
  ASSERT_TRUE(files.ok()) << files.status().message;
  Party party(process);
  const auto spec = part_of(files->spec, party.shard);
  const auto map = part_of(files->map, files->spec, party.shard);
  ASSERT_TRUE(spec.ok() && map.ok());
  auto weights = Weights<Cuda>::load(party.device, *spec, static_cast<DType>(dtype), *map);
  ASSERT_TRUE(weights.ok()) << weights.status().message;
  auto decoder = Decoder<Cuda>::make(party.device, *spec, static_cast<DType>(dtype), std::move(*weights),
                                     test::kGoldenLimits, nullptr, party.ranks.get());
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  (void)test::logits_of(**decoder, golden);  // alone: the numbers mean nothing, and must leave nothing behind
  ASSERT_TRUE(party.join());
  process.answer(test::logits_of(**decoder, golden));
  party.device.sync();
  process.leave_together();
}

struct RankCase {
  GoldenCase which;
  int ranks;
  bool expert_parallel;
  std::string_view way{};  ///< as Party has it
};

class CudaRankGoldens : public ::testing::TestWithParam<std::tuple<RankCase, DType>> {};

TEST_P(CudaRankGoldens, EveryRankHasTheReferencesLogits) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto& [one, dtype] = GetParam();
  if (one.way == "nccl" && !nccl_version().ok()) GTEST_SKIP() << nccl_version().status().message;
  const auto logits =
      test::run_ranks<float>("CudaRanks.DISABLED_RankOfAGolden", one.ranks, one.expert_parallel,
                             std::string(one.which.checkpoint) + " " + one.which.golden + " " +
                                 std::to_string(static_cast<int>(dtype)) + " " + std::string(one.way),
                             kPatience);
  for (std::size_t r = 0; r < logits.size(); ++r)
    EXPECT_EQ(logits[r], logits[0]) << "rank " << r << " has other bits";
  test::check_logits(logits[0], test::load_golden(one.which.golden), dtype);
}

std::string name_of(const ::testing::TestParamInfo<CudaRankGoldens::ParamType>& info) {
  const auto& [one, dtype] = info.param;
  return std::string(one.which.checkpoint) + "_" + to_string(dtype) + "_" + std::to_string(one.ranks) +
         (one.expert_parallel ? "_experts" : "") +
         (one.way.empty() ? "" : "_" + std::string(one.way.substr(0, one.way.find(' '))));
}

constexpr RankCase kCases[] = {
    {{"gqa3_tied", "gqa3_tied"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 4, false},
    {{"gqa8_tied", "gqa8_tied"}, 4, false, "two steps"},
    {{"gqa8_tied", "gqa8_tied"}, 8, false},
    {{"gqa8_tied", "gqa8_tied"}, 8, false, "two steps"},
    {{"moe_ranks8", "moe_ranks8"}, 4, false, "two steps"},
    {{"moe_ranks8", "moe_ranks8"}, 8, false},
    {{"moe_ranks8", "moe_ranks8"}, 8, true},
    {{"moe_ranks8", "moe_ranks8"}, 8, true, "two steps"},
    {{"moe_shared2", "moe_shared2"}, 2, false},
    {{"moe_shared2", "moe_shared2"}, 2, true},
    {{"moe_shared2_paddle", "moe_shared2"}, 2, false},
    {{"moe_end", "moe_end"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 2, false, "nccl"},
    {{"gqa8_tied", "gqa8_tied"}, 4, false, "nccl"},
    {{"moe_shared2", "moe_shared2"}, 2, false, "nccl"},
    {{"moe_shared2", "moe_shared2"}, 2, true, "nccl"},
};

INSTANTIATE_TEST_SUITE_P(All, CudaRankGoldens,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         name_of);

// ---- Quantised models

const std::vector<test::QuantisedCase>& quantised_ways() {
  static const std::vector<test::QuantisedCase> ways{
      {"dense_gqa8", "wint8", {.method = "wint8"}},
      {"dense_gqa8", "wint4", {.method = "wint4"}},
      {"dense_gqa8", "fp8", {.method = "block_wise_fp8"}},
      {"dense_gqa8", "kv_int8", {.kv_cache = config::KvCacheDType::int8}},
      {"moe_gqa5", "wint4", {.method = "wint4"}},
      {"moe_gqa5", "fp8", {.method = "block_wise_fp8"}}};
  return ways;
}

TEST_F(CudaRanks, DISABLED_RankOfAQuantisedModel) {
  const RankProcess process = RankProcess::mine();
  const auto files = test::quantised_files(
      quantised_ways().at(static_cast<std::size_t>(std::stoi(process.what))), config::Device::cuda);
  ASSERT_TRUE(files.ok()) << files.status().message;
  Party party(process);
  const auto logits = test::quantised_logits(party.device, *files, party.shard, party.ranks.get(), true);
  ASSERT_TRUE(logits.ok()) << logits.status().message;
  process.answer(*logits);
  party.device.sync();
}

class QuantisedCudaRanks : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(QuantisedCudaRanks, AnswerAsOneDoes) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto [index, expert_parallel] = GetParam();
  const auto files =
      test::quantised_files(quantised_ways()[static_cast<std::size_t>(index)], config::Device::cuda);
  ASSERT_TRUE(files.ok()) << files.status().message;
  if (expert_parallel && files->spec.experts == 0) GTEST_SKIP() << "no experts to spread";
  Cuda device(CudaOptions{});
  const auto one = test::quantised_logits<Cuda>(device, *files, {}, nullptr);
  ASSERT_TRUE(one.ok()) << one.status().message;
  const auto several = test::run_ranks<float>("CudaRanks.DISABLED_RankOfAQuantisedModel", 2, expert_parallel,
                                              std::to_string(index));
  EXPECT_EQ(several[0], several[1]);
  test::check_against_one(files->formats, several[0], *one);
}

INSTANTIATE_TEST_SUITE_P(All, QuantisedCudaRanks,
                         ::testing::Combine(::testing::Range(0, 6), ::testing::Bool()), [](const auto& info) {
                           return test::case_name(
                                      quantised_ways()[static_cast<std::size_t>(std::get<0>(info.param))]) +
                                  (std::get<1>(info.param) ? "_experts" : "");
                         });

constexpr int kSlots = 8;

/// `what`: a checkpoint, and " nccl"; or " sized": the blocks are those that the ranks find room for; or
/// " apart": take_for_cards_without_peers() was called.
config::Options options_of(const std::string& what, int ranks) {
  config::Options options;
  options.model.directory = test::golden_directory(what.substr(0, what.find(' '))).string();
  options.parallel.disable_custom_all_reduce = what.ends_with("nccl");
  options.device.num_gpu_blocks_override = what.ends_with("sized") ? 0 : 3 * kSlots;
  options.parallel.tensor_parallel_size = ranks;
  for (int rank = 0; rank < ranks; ++rank) options.parallel.rank_devices.push_back(rank % cuda_devices());
  options.scheduler.max_num_seqs = kSlots;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.max_model_len = 192;
  return options;
}

/// GPUs of this process, taken for cards that do not reach each other's memory. NCCL goes through the host's
/// memory then, as it does between such cards. Nothing else differs: code for one capability samples with
/// that one's number of blocks.
void take_for_cards_without_peers() {
  Result<Card> card = find_card("H200");
  ASSERT_TRUE(card.ok());
  card->reaches_peers = false;
  set_gpu_like(*card);
  ASSERT_EQ(::setenv("NCCL_P2P_DISABLE", "1", 1), 0);
}

std::unique_ptr<Executor> executor_of(const std::string& what, const RankPlace& place = {}) {
  const config::Options options = options_of(what, place.shard.ranks);
  auto files = open_model(options.model);
  EXPECT_TRUE(files.ok() && files->choose(config::Device::cuda, options.quantization).ok());
  auto made = make_cuda_executor(*files, options, {}, place);
  EXPECT_TRUE(made.ok()) << made.status().message;
  return std::move(*made);
}

std::vector<TokenId> tokens_of(Executor& executor) {
  for (const TimePoint end = Clock::now() + std::chrono::minutes(1);
       !*executor.prepare() && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<test::Ask> asks(kSlots);
  for (int i = 0; i < kSlots; ++i) {
    test::Ask& ask = asks[static_cast<std::size_t>(i)];
    for (int t = 0; t < 3 + i * 11; ++t) ask.prompt.push_back((i * 31 + t * 17) % 90);
    ask.outputs = 12 + i;
    ask.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    ask.sampling.seed = static_cast<std::uint64_t>(i);
    ask.starts_at = 1 + i;
    ask.blocks = {3 * i, 3 * i + 1, 3 * i + 2};
  }
  std::vector<TokenId> tokens;
  for (const test::Answer& answer : test::Engine(executor).run(asks)) {
    tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
  }
  return tokens;
}

// The same asks in two epochs: graphs, chunks of prompts, steps in flight, draws.
TEST_F(CudaRanks, DISABLED_RankOfAnExecutor) {
  const RankProcess process = RankProcess::mine();
  if (process.what.ends_with("apart")) take_for_cards_without_peers();
  const auto executor = executor_of(process.what, {process.shard, process.memory});
  auto meeting = RankMeeting::attach(process.meeting, process.shard);
  auto memory = RankMemory::attach(process.memory);
  ASSERT_TRUE(meeting.ok() && memory.ok());
  const auto meet = [&] { ASSERT_TRUE(meeting->meet([] {})); };
  meet();
  process.answer(tokens_of(*executor));
  meet();
  if (process.shard.rank == 0) memory->set_epoch(2);
  meet();
  executor->reset(2);
  meet();
  process.answer(tokens_of(*executor));
  meet();
}

/// Ranks give the answers of `expected`, one GPU's, and in the second epoch the same as in the first.
void expect_answers(const char* checkpoint, int ranks, const std::vector<TokenId>& expected) {
  const auto answers =
      test::run_ranks<TokenId>("CudaRanks.DISABLED_RankOfAnExecutor", ranks, false, checkpoint, kPatience);
  for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]) << checkpoint;
  ASSERT_EQ(answers[0].size(), 2 * expected.size()) << checkpoint;
  const auto second = answers[0].begin() + static_cast<std::ptrdiff_t>(expected.size());
  EXPECT_TRUE(std::equal(answers[0].begin(), second, second)) << checkpoint;
  // Sums over ranks round differently, so a close choice may fall differently, and what follows it.
  std::size_t same = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) same += expected[i] == answers[0][i];
  EXPECT_GE(same, expected.size() * 3 / 4) << checkpoint;
}

TEST_F(CudaRanks, AnswerAsOneDoes) {
  struct Ranks {
    const char* checkpoint;
    int count;
  };
  for (const auto& [checkpoint, ranks] : {Ranks{"gqa8_tied", 2},
                                          {"moe_shared2", 2},
                                          {"gqa8_tied nccl", 2},
                                          {"gqa8_tied sized", 4},
                                          {"moe_ranks8", 4},
                                          {"gqa8_tied", 8},
                                          {"moe_ranks8", 8}}) {
    if (std::string_view(checkpoint).ends_with("nccl") && !nccl_version().ok()) continue;
    expect_answers(checkpoint, ranks, tokens_of(*executor_of(checkpoint)));
  }
}

// Two GPUs without peer access exchange over NCCL and the host's memory, without being told to.
TEST_F(CudaRanks, AnswerAsOneDoesWithoutPeerAccess) {
  if (cuda_devices() < 2) GTEST_SKIP() << "there is one GPU";
  if (const auto nccl = nccl_version(); !nccl.ok()) GTEST_SKIP() << nccl.status().message;
  const std::optional<Card> before = gpu_like();
  take_for_cards_without_peers();
  const ExchangeWay way = choose_exchange(options_of("gqa8_tied", 2).parallel, cuda_reaches);
  EXPECT_TRUE(way.nccl);
  EXPECT_EQ(way.why, "GPU 0 cannot use the memory of GPU 1");
  {
    Cuda device;
    const auto opened = PeerMemory::open(device, {.process = ::getpid(), .ordinal = 1});
    EXPECT_EQ(opened.status().code, Code::unavailable);
  }
  for (const char* checkpoint : {"gqa8_tied apart", "moe_shared2 apart"})
    expect_answers(checkpoint, 2, tokens_of(*executor_of(checkpoint)));
  set_gpu_like(before);
  ::unsetenv("NCCL_P2P_DISABLE");
}

}  // namespace
}  // namespace troupe::model
