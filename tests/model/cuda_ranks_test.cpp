// Several ranks on GPUs, each a process. Where there are fewer GPUs than ranks they share one and take turns.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <sstream>

#include "gpu/cuda.h"
#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"
#include "gpu/nccl.h"
#include "model/cuda/executor.h"
#include "model/ranks/part.h"
#include "model/support/engine.h"
#include "model/support/golden.h"
#include "model/support/quantised_ranks.h"
#include "model/support/rank_processes.h"

namespace troupe::model {
namespace {

using test::GoldenCase;
using test::RankProcess;

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

// ---- Sums and columns

float number(int rank, std::size_t i, int round) {
  // The sum of these depends on their order.
  return (static_cast<float>((i * 7919 + static_cast<std::size_t>(round) * 131) % 10007) - 5000.0f) /
         (static_cast<float>(rank) + 1.3f);
}

std::vector<float> numbers(int rank, std::size_t count, int round) {
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = number(rank, i, round);
  return made;
}

std::vector<float> sums(int ranks, std::size_t count, int round) {
  std::vector<float> made = numbers(0, count, round);
  for (int r = 1; r < ranks; ++r) {
    for (std::size_t i = 0; i < count; ++i) made[i] += number(r, i, round);
  }
  return made;
}

/// One rank's device and its collective.
struct Party {
  explicit Party(const RankProcess& process, bool overlap = true)
      : shard(process.shard), device({.ordinal = process.shard.rank % cuda_devices(), .overlap = overlap}) {
    const bool nccl = process.what.ends_with("nccl");
    auto attached =
        Collective<Cuda>::attach(process.memory, shard, device, nccl, cuda_devices() < process.shard.ranks);
    EXPECT_TRUE(attached.ok()) << attached.status().message;
    ranks = std::move(*attached);
  }
  bool join() { return test::join(*ranks); }
  float* put(const std::vector<float>& values) {
    auto* memory = static_cast<float*>(device.alloc(values.size() * sizeof(float)));
    device.upload(memory, values.data(), values.size() * sizeof(float));
    return memory;
  }
  std::vector<float> get(const float* memory, std::size_t count) {
    std::vector<float> values(count);
    device.download(values.data(), memory, count * sizeof(float));
    device.sync();
    return values;
  }

  Shard shard;
  Cuda device;
  std::unique_ptr<Collective<Cuda>> ranks;
};

constexpr std::size_t kFew = 20'480;

// 1: half a packet; 65,536 and 65,537: the last exchange by packets and the first by pieces; 2,500,001: two
// exchanges.
constexpr std::size_t kCounts[] = {1, 2, 20'480, 65'536, 65'537, 300'000, 2'500'001};

TEST_F(CudaRanks, DISABLED_RankThatSums) {
  Party party(RankProcess::mine());
  const int ranks = party.shard.ranks, rank = party.shard.rank;
  float* const alone = party.put(numbers(rank, 70'000, 0));
  party.ranks->all_reduce(party.device, alone, alone, 70'000);
  EXPECT_EQ(party.get(alone, 70'000), numbers(rank, 70'000, 0))
      << "before join() a rank takes its own numbers";
  ASSERT_TRUE(party.join());
  int round = 0;
  for (const std::size_t count : kCounts) {
    for (int again = 0; again < 3; ++again, ++round) {
      float* const values = party.put(numbers(rank, count, round));
      party.ranks->all_reduce(party.device, values, values, count);
      EXPECT_EQ(party.get(values, count), sums(ranks, count, round)) << count;
      party.device.free(values);
    }
    float* const part = party.put(numbers(rank, count, 1));
    float* const sum = party.put(std::vector<float>(count, -1));
    party.ranks->all_reduce(party.device, part, sum, count);
    EXPECT_EQ(party.get(sum, count), sums(ranks, count, 1));
    EXPECT_EQ(party.get(part, count), std::vector<float>(count, 0)) << "a part that has been added is zero";
    party.device.free(part);
    party.device.free(sum);
  }
  constexpr std::size_t kCount = 5'121;
  float* const values = party.put(std::vector<float>(kCount, 1));
  const CudaGraph graph = CudaGraph::capture(party.device, [&] {
    for (int i = 0; i < 3; ++i) party.ranks->all_reduce(party.device, values, values, kCount);
  });
  graph.launch(party.device);
  graph.launch(party.device);
  EXPECT_EQ(party.get(values, kCount)[kCount - 1], std::pow(static_cast<float>(ranks), 6.0f));
}

TEST_F(CudaRanks, DISABLED_RankThatGathers) {
  Party party(RankProcess::mine());
  ASSERT_TRUE(party.join());
  constexpr int kWidth = 61, kStride = 64;
  const int ranks = party.shard.ranks;
  std::vector<int> first;
  for (int r = 0; r <= ranks; ++r)
    first.push_back(r * kWidth - (r == ranks ? 2 : 0));  // the last is narrower
  for (const int rows : {1, 3, 5'000, 40'000}) {
    const std::size_t in_stride = kWidth + 3, out_stride = static_cast<std::size_t>(ranks) * kStride;
    const auto size = [&](std::size_t stride) { return static_cast<std::size_t>(rows) * stride; };
    float* const in = party.put(numbers(party.shard.rank, size(in_stride), rows));
    float* const out = party.put(std::vector<float>(size(out_stride), -1));
    party.ranks->all_gather(party.device, in, in_stride, out, out_stride, rows, first);
    std::vector<float> expected(size(out_stride), -1);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      for (int r = 0; r < ranks; ++r) {
        for (int c = first[static_cast<std::size_t>(r)]; c < first[static_cast<std::size_t>(r) + 1]; ++c) {
          const auto column = static_cast<std::size_t>(c - first[static_cast<std::size_t>(r)]);
          expected[row * out_stride + static_cast<std::size_t>(c)] =
              number(r, row * in_stride + column, rows);
        }
      }
    }
    EXPECT_EQ(party.get(out, size(out_stride)), expected) << rows;
    party.device.free(in);
    party.device.free(out);
  }
}

TEST_F(CudaRanks, SumInTheOrderOfTheRanks) {
  for (const int ranks : {2, 3}) test::run_ranks<char>("CudaRanks.DISABLED_RankThatSums", ranks, false, "");
}

TEST_F(CudaRanks, GatherColumns) {
  for (const int ranks : {2, 3})
    test::run_ranks<char>("CudaRanks.DISABLED_RankThatGathers", ranks, false, "");
}

// Of two numbers the order does not matter, and NCCL has one of its own.
TEST_F(CudaRanks, ExchangeOverNccl) {
  if (const auto nccl = nccl_version(); !nccl.ok()) GTEST_SKIP() << nccl.status().message;
  test::run_ranks<char>("CudaRanks.DISABLED_RankThatSums", 2, false, "nccl");
  for (const int ranks : {2, 3})
    test::run_ranks<char>("CudaRanks.DISABLED_RankThatGathers", ranks, false, "nccl");
}

// The ranks meet anew in every epoch, after graphs of the one before are gone.
TEST_F(CudaRanks, DISABLED_RankOfSeveralEpochs) {
  Party party(RankProcess::mine());
  auto memory = RankMemory::attach(RankProcess::mine().memory);
  ASSERT_TRUE(memory.ok());
  auto others = RankMeeting::attach(RankProcess::mine().meeting, party.shard);
  ASSERT_TRUE(others.ok());
  EXPECT_FALSE(party.ranks->lasting_graphs());
  float* const values = party.put(std::vector<float>(kFew, 1));
  for (std::uint32_t epoch = 2; epoch < 5; ++epoch) {
    if (party.shard.rank == 0) memory->set_epoch(epoch);
    ASSERT_TRUE(others->meet([] {}));
    party.ranks->begin_epoch(epoch);
    EXPECT_FALSE(party.ranks->joined());
    ASSERT_TRUE(party.join());
    const CudaGraph graph = CudaGraph::capture(
        party.device, [&] { party.ranks->all_reduce(party.device, values, values, kFew); });
    graph.launch(party.device);
    party.device.sync();
    ASSERT_TRUE(others->meet([] {}));
  }
  EXPECT_EQ(party.get(values, kFew), std::vector<float>(kFew, 8));
}

TEST_F(CudaRanks, MeetAnewOverNccl) {
  if (const auto nccl = nccl_version(); !nccl.ok()) GTEST_SKIP() << nccl.status().message;
  test::run_ranks<char>("CudaRanks.DISABLED_RankOfSeveralEpochs", 2, false, "nccl");
}

// ---- Deaths

TEST_F(CudaRanks, DISABLED_RankThatSumsForEver) {
  Party party(RankProcess::mine());
  ASSERT_TRUE(party.join());
  for (;;) {
    float* const values = party.put(std::vector<float>(kFew, 2));
    for (int i = 0; i < 100; ++i) party.ranks->all_reduce(party.device, values, values, kFew);
    party.device.sync();
    party.device.free(values);
  }
}

// The other rank is killed while both are at it. Who is left is freed, and sums with the one that is started
// next.
TEST_F(CudaRanks, ADeathFreesTheOthers) {
  const auto fd = create_rank_memory(2);
  ASSERT_TRUE(fd.ok());
  auto memory = RankMemory::attach(*fd);
  ASSERT_TRUE(memory.ok());
  RankProcess mine{{0, 2, false}, *fd};
  Party party(mine);
  float* const values = party.put(std::vector<float>(kFew, 1));
  const char* const asked = std::getenv("TROUPE_TEST_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 3;
  for (int round = 0; round < rounds; ++round) {
    const pid_t other = test::start_rank("CudaRanks.DISABLED_RankThatSumsForEver", {{1, 2, false}, *fd});
    ASSERT_TRUE(party.join()) << "round " << round;
    const std::vector<float> ones(kFew, 1);
    party.device.upload(values, ones.data(), kFew * sizeof(float));
    party.ranks->all_reduce(party.device, values, values, kFew);
    EXPECT_EQ(party.get(values, kFew), std::vector<float>(kFew, 3)) << "round " << round;
    std::jthread supervisor([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ::kill(other, SIGKILL);
      ::waitpid(other, nullptr, 0);
      memory->set_epoch(static_cast<std::uint32_t>(round) + 2);
    });
    CudaEvent end;
    for (int i = 0; i < 100'000 && !party.ranks->abandoned(); ++i) {
      party.ranks->all_reduce(party.device, values, values, kFew);
      end.record(party.device);
      while (!end.passed() && !party.ranks->abandoned()) std::this_thread::yield();
    }
    supervisor.join();
    ASSERT_TRUE(party.ranks->abandoned());
    party.ranks->leave();
    const TimePoint left = Clock::now();
    party.device.sync();
    EXPECT_LT(Clock::now() - left, std::chrono::seconds(2));
    party.ranks->begin_epoch(memory->epoch());
  }
  party.device.free(values);
  ::close(*fd);
}

// ---- Models

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
}

struct RankCase {
  GoldenCase which;
  int ranks;
  bool expert_parallel;
  bool nccl = false;
};

class CudaRankGoldens : public ::testing::TestWithParam<std::tuple<RankCase, DType>> {};

TEST_P(CudaRankGoldens, EveryRankHasTheReferencesLogits) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto& [one, dtype] = GetParam();
  if (one.nccl && !nccl_version().ok()) GTEST_SKIP() << nccl_version().status().message;
  const auto logits =
      test::run_ranks<float>("CudaRanks.DISABLED_RankOfAGolden", one.ranks, one.expert_parallel,
                             std::string(one.which.checkpoint) + " " + one.which.golden + " " +
                                 std::to_string(static_cast<int>(dtype)) + (one.nccl ? " nccl" : ""));
  for (std::size_t r = 0; r < logits.size(); ++r)
    EXPECT_EQ(logits[r], logits[0]) << "rank " << r << " has other bits";
  test::check_logits(logits[0], test::load_golden(one.which.golden), dtype);
}

std::string name_of(const ::testing::TestParamInfo<CudaRankGoldens::ParamType>& info) {
  const auto& [one, dtype] = info.param;
  return std::string(one.which.checkpoint) + "_" + to_string(dtype) + "_" + std::to_string(one.ranks) +
         (one.expert_parallel ? "_experts" : "") + (one.nccl ? "_nccl" : "");
}

constexpr RankCase kCases[] = {
    {{"gqa3_tied", "gqa3_tied"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 4, false},
    {{"moe_shared2", "moe_shared2"}, 2, false},
    {{"moe_shared2", "moe_shared2"}, 2, true},
    {{"moe_shared2_paddle", "moe_shared2"}, 2, false},
    {{"moe_end", "moe_end"}, 2, false},
    {{"gqa8_tied", "gqa8_tied"}, 2, false, true},
    {{"gqa8_tied", "gqa8_tied"}, 4, false, true},
    {{"moe_shared2", "moe_shared2"}, 2, false, true},
    {{"moe_shared2", "moe_shared2"}, 2, true, true},
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

/// `what`: a checkpoint, and " nccl".
config::Options options_of(const std::string& what) {
  config::Options options;
  options.model.directory = test::golden_directory(what.substr(0, what.find(' '))).string();
  options.parallel.disable_custom_all_reduce = what.ends_with("nccl");
  options.device.num_gpu_blocks_override = 3 * kSlots;
  options.parallel.ranks_per_gpu = cuda_devices() < 2 ? 2 : 1;
  options.scheduler.max_num_seqs = kSlots;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.max_model_len = 192;
  return options;
}

std::unique_ptr<Executor> executor_of(const std::string& what, const RankPlace& place = {}) {
  config::Options options = options_of(what);
  options.parallel.tensor_parallel_size = place.shard.ranks;
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

TEST_F(CudaRanks, AnswerAsOneDoes) {
  for (const char* const checkpoint : {"gqa8_tied", "moe_shared2", "gqa8_tied nccl"}) {
    if (std::string_view(checkpoint).ends_with("nccl") && !nccl_version().ok()) continue;
    const std::vector<TokenId> expected = tokens_of(*executor_of(checkpoint));
    const auto answers =
        test::run_ranks<TokenId>("CudaRanks.DISABLED_RankOfAnExecutor", 2, false, checkpoint);
    EXPECT_EQ(answers[0], answers[1]) << checkpoint;
    ASSERT_EQ(answers[0].size(), 2 * expected.size()) << checkpoint;
    const auto second = answers[0].begin() + static_cast<std::ptrdiff_t>(expected.size());
    EXPECT_TRUE(std::equal(answers[0].begin(), second, second)) << checkpoint;
    // Sums over ranks round differently, so a close choice may fall differently, and what follows it.
    std::size_t same = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) same += expected[i] == answers[0][i];
    EXPECT_GE(same, expected.size() * 3 / 4) << checkpoint;
  }
}

}  // namespace
}  // namespace troupe::model
