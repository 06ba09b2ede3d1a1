// Exchanges of several ranks on GPUs, each a process. Where there are fewer GPUs than ranks they share one
// and take turns.
#include <cmath>

#include "gpu/cuda_graph.h"
#include "gpu/nccl.h"
#include "kernels/add_rms_norm.h"
#include "model/support/cuda_party.h"
#include "model/support/exchange_numbers.h"

namespace troupe::model {
namespace {

using test::number;
using test::numbers;
using test::Party;
using test::RankProcess;
using test::sums;

class CudaExchange : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

// ---- Sums and columns

constexpr std::size_t kFew = 20'480;

// 1: half a packet, and in two steps nothing for all ranks but one; 163,840 and 163,841: the last exchange by
// packets and the first by pieces; 17,000,000: several exchanges. A count that four divides goes four numbers
// at a time.
constexpr std::size_t kCounts[] = {1, 2, 20'480, 163'840, 163'841, 300'000, 2'500'001, 17'000'000};
// "few …": small enough for tools such as compute-sanitizer, which run kernels a thousand times slower.
constexpr std::size_t kMostOfFew = 20'480;

TEST_F(CudaExchange, DISABLED_RankThatSums) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  const int ranks = party.shard.ranks, rank = party.shard.rank;
  float* const alone = party.put(numbers(rank, 70'000, 0));
  party.ranks->all_reduce(party.device, alone, alone, 70'000);
  EXPECT_EQ(party.get(alone, 70'000), numbers(rank, 70'000, 0))
      << "before join() a rank takes its own numbers";
  ASSERT_TRUE(party.join());
  int round = 0;
  for (const std::size_t count : kCounts) {
    if (process.what.starts_with("few") && count > kMostOfFew) break;
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
  process.leave_together();
}

// The sum of rows and their norm in one kernel have the bits of the two kernels; rows that one kernel cannot
// take are summed, and all_reduce() says so.
TEST_F(CudaExchange, DISABLED_RankThatSumsAndNorms) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  const int ranks = party.shard.ranks, rank = party.shard.rank;
  struct Case {
    int rows, cols;
    bool fused;
  };
  int round = 0;
  const auto check = [&](Case c, DType dtype, bool in_place) {
    const std::size_t count = static_cast<std::size_t>(c.rows) * static_cast<std::size_t>(c.cols);
    const std::vector<float> mine = numbers(rank, count, ++round);
    const std::vector<float> sum = party.ranks->joined() ? sums(ranks, count, round) : mine;
    const std::size_t bytes = count * size_of(dtype);
    float* const residual = party.put(in_place ? mine : std::vector<float>(count, -1));
    float* const in = in_place ? residual : party.put(mine);
    float* const weight = party.put(numbers(5, static_cast<std::size_t>(c.cols), 0));
    auto* const out = static_cast<std::byte*>(party.device.alloc(bytes));
    kernels::AddRmsNorm norm{.out = out,
                             .residual = residual,
                             .weight = weight,
                             .dtype = dtype,
                             .rows = c.rows,
                             .cols = c.cols,
                             .eps = 1e-5f};
    const auto outputs = [&] {
      std::vector<std::byte> values(bytes);
      party.device.download(values.data(), out, bytes);
      party.device.sync();
      return values;
    };
    EXPECT_EQ(party.ranks->all_reduce(party.device, in, norm), c.fused) << c.rows << " x " << c.cols;
    const std::vector<std::byte> fused = outputs();
    EXPECT_EQ(party.get(residual, count), sum) << c.rows << " x " << c.cols;
    EXPECT_EQ(party.get(in, count), in_place ? sum : std::vector<float>(count, 0));
    kernels::run(party.device, norm);
    if (c.fused) {
      EXPECT_EQ(fused, outputs()) << c.rows << " x " << c.cols;
    }
    if (!in_place) party.device.free(in);
    party.device.free(residual);
    party.device.free(weight);
    party.device.free(out);
  };
  // A cluster a row up to {64, 2560}, {20, 8192} and {512, 64}; {13'000, 64} are several exchanges.
  constexpr Case kCases[] = {{1, 64, true},    {3, 576, true},    {1, 2560, true},    {64, 2560, true},
                             {65, 2560, true}, {170, 2560, true}, {171, 2560, true},  {1, 8192, true},
                             {20, 8192, true}, {21, 8192, true},  {64, 8192, true},   {65, 8192, true},
                             {1, 8256, false}, {60, 8256, false}, {2, 4160, true},    {512, 64, true},
                             {513, 64, true},  {700, 8192, true}, {3'000, 576, true}, {13'000, 64, true}};
  for (const int rows : {3, 300, 900}) check({rows, 576, true}, DType::bf16, true);  // alone
  ASSERT_TRUE(party.join());
  for (const Case c : kCases) {
    if (process.what.starts_with("few") && c.rows * c.cols > static_cast<int>(kMostOfFew)) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool in_place : {true, false}) check(c, dtype, in_place);
    }
  }
}

TEST_F(CudaExchange, DISABLED_RankThatGathers) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  ASSERT_TRUE(party.join());
  const int ranks = party.shard.ranks;
  // Rows of `width` columns a rank; the last has `less`.
  const auto check = [&](int rows, int width, int less) {
    std::vector<int> first;
    for (int r = 0; r <= ranks; ++r) first.push_back(r * width - (r == ranks ? less : 0));
    const auto in_stride = static_cast<std::size_t>(width) + 4,
               out_stride = static_cast<std::size_t>(ranks * width) + 4;
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
    EXPECT_EQ(party.get(out, size(out_stride)), expected) << rows << " x " << width;
    party.device.free(in);
    party.device.free(out);
  };
  for (const int rows : {1, 3, 5'000, 140'000}) {
    if (process.what.starts_with("few") && rows > 3) break;
    check(rows, 61, 2);
    check(rows, 64, 4);
  }
  process.leave_together();
}

// Exchanges of all kinds over the end of their numbers, then the first numbers once more: what an inbox holds
// from the first round must not pass for new.
TEST_F(CudaExchange, DISABLED_RankWhoseNumbersWrap) {
  Party party(RankProcess::mine());
  const int ranks = party.shard.ranks, rank = party.shard.rank;
  auto others = RankMeeting::attach(RankProcess::mine().meeting, party.shard);
  ASSERT_TRUE(others.ok());
  ASSERT_TRUE(party.join());
  int round = 0;
  const auto check = [&](std::size_t count) {
    // Ranks are late in turns: old numbers would be taken before the new ones come.
    if (++round % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    float* const values = party.put(numbers(rank, count, round));
    party.ranks->all_reduce(party.device, values, values, count);
    EXPECT_EQ(party.get(values, count), sums(ranks, count, round)) << count << ", round " << round;
    party.device.free(values);
  };
  const auto skip_to = [&](std::uint32_t number) {
    ASSERT_TRUE(others->meet([] {}));
    party.ranks->skip_to_exchange(number);
    ASSERT_TRUE(others->meet([] {}));
  };
  constexpr std::size_t kPackets = 163'840, kPieces = 300'000;
  constexpr std::size_t kRound[] = {kPackets, kPackets, kPieces, kPieces, kPackets, kPackets, 2, 20'480};
  for (const std::size_t count : kRound) check(count);  // from number 2
  skip_to(kernels::kLastExchange - 1);
  check(2);  // the last two overwrite little of what the first ones left
  check(2);
  for (const std::size_t count : kRound) check(count);  // from number 2 again
  for (std::uint32_t before = 0; before < 4; ++before) {
    skip_to(kernels::kLastExchange - before);
    for (const std::size_t count : {kPackets, std::size_t{2}, kPieces, kPackets, std::size_t{20'480}})
      check(count);
  }
}

TEST(ExchangeNumbers, HalvesTakeTurnsAtTheEndOfARound) {
  using kernels::exchange_after, kernels::kFirstExchange, kernels::kLastExchange;
  EXPECT_EQ(exchange_after(kLastExchange), kFirstExchange);
  EXPECT_NE(kFirstExchange, 0u) << "what a cleared inbox holds";
  EXPECT_NE(kFirstExchange % 2, kLastExchange % 2);
  for (std::uint32_t number = kLastExchange - 3; number != kFirstExchange + 3;
       number = exchange_after(number)) {
    EXPECT_NE(number, 0u);
    EXPECT_NE(number % 2, exchange_after(number) % 2);
  }
}

// A rank is late for an exchange in turns, first for the meeting: the others wait, and what they have sent is
// not taken for another exchange's.
TEST_F(CudaExchange, DISABLED_RankThatIsLateInTurns) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  const int ranks = party.shard.ranks, rank = party.shard.rank;
  std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank));
  ASSERT_TRUE(party.join());
  constexpr int kCols = 640;
  for (int round = 0; round < 2 * ranks; ++round) {
    if (round % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const int rows = round % 3 == 2 && !process.what.starts_with("few") ? 600 : 1 + round;
    const std::size_t count = static_cast<std::size_t>(rows) * kCols;
    float* const values = party.put(numbers(rank, count, round));
    float* const weight = party.put(std::vector<float>(kCols, 1));
    float* const out = party.put(std::vector<float>(count));
    if (round % 2 == 0) {
      party.ranks->all_reduce(party.device, values, values, count);
    } else {
      EXPECT_TRUE(party.ranks->all_reduce(party.device, values,
                                          kernels::AddRmsNorm{.out = out,
                                                              .residual = values,
                                                              .weight = weight,
                                                              .dtype = DType::f32,
                                                              .rows = rows,
                                                              .cols = kCols,
                                                              .eps = 1e-5f}));
    }
    EXPECT_EQ(party.get(values, count), sums(ranks, count, round)) << "round " << round;
    for (float* const taken : {values, weight, out}) party.device.free(taken);
  }
}

// Ranks, and how their sums go: both ways give the bits of sums().
class CudaExchangeWays : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
  void run(const std::string& rank, const std::string& what = "") const {
    const auto& [ranks, way] = GetParam();
    test::run_ranks<char>("CudaExchange.DISABLED_" + rank, ranks, false, what + way, std::chrono::minutes(5));
  }
};

TEST_P(CudaExchangeWays, SumInTheOrderOfTheRanks) { run("RankThatSums"); }
TEST_P(CudaExchangeWays, SumAndNorm) { run("RankThatSumsAndNorms"); }
TEST_P(CudaExchangeWays, NumbersWrap) { run("RankWhoseNumbersWrap"); }
TEST_P(CudaExchangeWays, RanksThatAreLate) { run("RankThatIsLateInTurns"); }
TEST_P(CudaExchangeWays, FewSums) { run("RankThatSums", "few, "); }
TEST_P(CudaExchangeWays, FewSumsAndNorms) { run("RankThatSumsAndNorms", "few, "); }
TEST_P(CudaExchangeWays, FewRanksThatAreLate) { run("RankThatIsLateInTurns", "few, "); }
TEST_P(CudaExchangeWays, FewColumns) { run("RankThatGathers", "few, "); }

INSTANTIATE_TEST_SUITE_P(All, CudaExchangeWays,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8),
                                            ::testing::Values("one step", "two steps")),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param)).substr(0, 3) + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST_F(CudaExchange, GatherColumns) {
  for (const int ranks : {2, 3, 8})
    test::run_ranks<char>("CudaExchange.DISABLED_RankThatGathers", ranks, false, "", std::chrono::minutes(5));
}

// Without knowing a way, ranks measure it: all have what rank 0 found, and it lasts. Who joins later is told.
TEST_F(CudaExchange, DISABLED_RankThatMeasures) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  auto memory = RankMemory::attach(process.memory);
  auto others = RankMeeting::attach(process.meeting, party.shard);
  ASSERT_TRUE(memory.ok() && others.ok());
  EXPECT_EQ(party.ranks->knows_steps(), party.shard.ranks == 2);
  ASSERT_TRUE(party.join());
  EXPECT_TRUE(party.ranks->knows_steps());
  const std::size_t found = party.ranks->two_steps_from();
  process.answer(std::vector<std::size_t>{found});
  const auto check = [&](Party& ours, std::size_t count) {
    float* const values = ours.put(numbers(ours.shard.rank, count, 3));
    ours.ranks->all_reduce(ours.device, values, values, count);
    EXPECT_EQ(ours.get(values, count), sums(ours.shard.ranks, count, 3));
    ours.device.free(values);
  };
  check(party, kFew);
  ASSERT_TRUE(others->meet([] {}));
  if (party.shard.rank == 0) memory->set_epoch(2);
  ASSERT_TRUE(others->meet([] {}));
  if (party.shard.rank == 0) {  // a new rank 0 knows nothing, and the others keep what they know
    Party next(process);
    EXPECT_FALSE(next.ranks->knows_steps());
    ASSERT_TRUE(next.join());
    EXPECT_EQ(next.ranks->two_steps_from(), found);
    check(next, 300'000);
    ASSERT_TRUE(others->meet([] {}));
    return;
  }
  party.ranks->leave();
  party.ranks->begin_epoch(2);
  ASSERT_TRUE(party.join());
  EXPECT_EQ(party.ranks->two_steps_from(), found);
  check(party, 300'000);
  ASSERT_TRUE(others->meet([] {}));
}

TEST_F(CudaExchange, AllRanksHaveTheWayThatWasMeasured) {
  for (const int ranks : {3, 4, 8}) {
    const auto found = test::run_ranks<std::size_t>("CudaExchange.DISABLED_RankThatMeasures", ranks, false,
                                                    "measures", std::chrono::minutes(5));
    for (const auto& each : found) EXPECT_EQ(each, found.front());
  }
}

// Of two numbers the order does not matter, and NCCL has one of its own.
TEST_F(CudaExchange, ExchangeOverNccl) {
  if (const auto nccl = nccl_version(); !nccl.ok()) GTEST_SKIP() << nccl.status().message;
  test::run_ranks<char>("CudaExchange.DISABLED_RankThatSums", 2, false, "nccl");
  for (const int ranks : {2, 3})
    test::run_ranks<char>("CudaExchange.DISABLED_RankThatGathers", ranks, false, "nccl");
}

// The ranks meet anew in every epoch, after graphs of the one before are gone.
TEST_F(CudaExchange, DISABLED_RankOfSeveralEpochs) {
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

TEST_F(CudaExchange, MeetAnewOverNccl) {
  if (const auto nccl = nccl_version(); !nccl.ok()) GTEST_SKIP() << nccl.status().message;
  test::run_ranks<char>("CudaExchange.DISABLED_RankOfSeveralEpochs", 2, false, "nccl");
}

}  // namespace
}  // namespace troupe::model
