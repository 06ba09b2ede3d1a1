// Deaths of ranks in the middle of exchanges, on GPUs. Where there are fewer GPUs than ranks they share one
// and take turns.
#include <csignal>

#include "gpu/cuda_event.h"
#include "kernels/add_rms_norm.h"
#include "model/support/cuda_party.h"

namespace troupe::model {
namespace {

using test::Party;
using test::RankProcess;

class CudaRankDeaths : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

// An exchange of the kind that `what` begins with: "packets" or "pieces" of a sum, a norm behind the sum by a
// "cluster" a row or by "rows"; how the sum goes stands behind it.
struct Exchange {
  Exchange(Party& party, const std::string& what)
      : rows(what.starts_with("pieces") || what.starts_with("rows") ? 400 : 8),
        norms(what.starts_with("cluster") || what.starts_with("rows")) {
    memory = party.put(std::vector<float>(count(), 1));
    weight = party.put(std::vector<float>(kCols, 1));
    out = party.put(std::vector<float>(count()));
  }
  std::size_t count() const { return static_cast<std::size_t>(rows) * kCols; }
  void fill(Party& party, float value) const {
    const std::vector<float> values(count(), value);
    party.device.upload(memory, values.data(), count() * sizeof(float));
  }
  void run(Party& party) const {
    if (!norms) return party.ranks->all_reduce(party.device, memory, memory, count());
    EXPECT_TRUE(party.ranks->all_reduce(party.device, memory,
                                        kernels::AddRmsNorm{.out = out,
                                                            .residual = memory,
                                                            .weight = weight,
                                                            .dtype = DType::f32,
                                                            .rows = rows,
                                                            .cols = kCols,
                                                            .eps = 1e-5f}));
  }
  void free(Party& party) const {
    for (float* const taken : {memory, weight, out}) party.device.free(taken);
  }

  static constexpr int kCols = 2560;
  int rows;
  bool norms;
  float *memory, *weight, *out;
};

// Sums and waits until that has ended, or the epoch has. False: the epoch has.
bool sum_once(Party& party, const Exchange& exchange, CudaEvent& end) {
  exchange.run(party);
  end.record(party.device);
  while (!end.passed()) {
    if (party.ranks->abandoned()) return false;
    std::this_thread::yield();
  }
  return true;
}

// In every epoch it sums twos first.
TEST_F(CudaRankDeaths, DISABLED_RankThatSumsForEver) {
  const RankProcess process = RankProcess::mine();
  Party party(process);
  auto memory = RankMemory::attach(process.memory);
  ASSERT_TRUE(memory.ok());
  const Exchange exchange(party, process.what);
  CudaEvent end;
  for (;;) {
    const TimePoint late = Clock::now() + std::chrono::minutes(2);
    while (!party.ranks->join() && !party.ranks->abandoned()) {
      ASSERT_LT(Clock::now(), late);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    exchange.fill(party, 2);
    while (!party.ranks->abandoned() && sum_once(party, exchange, end)) {
    }
    party.ranks->leave();
    party.device.sync();
    party.ranks->begin_epoch(memory->epoch());
  }
}

// Comes to the epoch, tells where its memory is, and dies before any other rank has opened that.
TEST_F(CudaRankDeaths, DISABLED_RankThatDiesAfterItsArrival) {
  Party party(RankProcess::mine());
  EXPECT_FALSE(party.ranks->join());
  ::_exit(0);
}

// That is a rank's loss as any other: the ones that are left go on in the next epoch.
TEST_F(CudaRankDeaths, ADeathBeforeItsMemoryIsOpenedEndsNoOther) {
  const auto fd = create_rank_memory(2);
  ASSERT_TRUE(fd.ok());
  auto memory = RankMemory::attach(*fd);
  ASSERT_TRUE(memory.ok());
  Party party(RankProcess{{0, 2, false}, *fd});
  const pid_t dead =
      test::start_rank("CudaRankDeaths.DISABLED_RankThatDiesAfterItsArrival", {{1, 2, false}, *fd});
  EXPECT_EQ(test::wait_for({dead}, std::chrono::seconds(60)), std::vector<int>{0});
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(party.ranks->join());
  EXPECT_FALSE(party.ranks->abandoned()) << "the supervisor has not said so yet";
  memory->set_epoch(2);
  EXPECT_FALSE(party.ranks->join());
  EXPECT_TRUE(party.ranks->abandoned());
  party.ranks->leave();
  party.ranks->begin_epoch(2);
  RankProcess next{{1, 2, false}, *fd};
  next.what = "packets";
  const pid_t other = test::start_rank("CudaRankDeaths.DISABLED_RankThatSumsForEver", next);
  ASSERT_TRUE(party.join());
  float* const values = party.put(std::vector<float>(8 * 2560, 1));
  party.ranks->all_reduce(party.device, values, values, 8 * 2560);
  EXPECT_EQ(party.get(values, 8 * 2560), std::vector<float>(8 * 2560, 3));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ::close(*fd);
}

// One of the other ranks is killed while all are at it. Who is left is freed, and sums with those that are
// left and the one that is started next.
struct Deaths {
  const char* name;
  const char* what;
  int ranks;
};
class CudaExchangeDeaths : public ::testing::TestWithParam<Deaths> {};

TEST_P(CudaExchangeDeaths, ADeathFreesTheOthers) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const int ranks = GetParam().ranks;
  const auto fd = create_rank_memory(ranks);
  ASSERT_TRUE(fd.ok());
  auto memory = RankMemory::attach(*fd);
  ASSERT_TRUE(memory.ok());
  const auto process_of = [&](int rank) {
    RankProcess process{{rank, ranks, false}, *fd};
    process.what = GetParam().what;
    return process;
  };
  const auto start = [&](int rank) {
    return test::start_rank("CudaRankDeaths.DISABLED_RankThatSumsForEver", process_of(rank));
  };
  Party party(process_of(0));
  const Exchange exchange(party, GetParam().what);
  const char* const asked = std::getenv("TROUPE_TEST_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 3;
  std::vector<pid_t> others{-1};
  for (int rank = 1; rank < ranks; ++rank) others.push_back(start(rank));
  for (int round = 0; round < rounds; ++round) {
    ASSERT_TRUE(party.join()) << "round " << round;
    exchange.fill(party, 1);
    exchange.run(party);
    EXPECT_EQ(party.get(exchange.memory, exchange.count()),
              std::vector<float>(exchange.count(), static_cast<float>(2 * ranks - 1)))
        << "round " << round;
    const int victim = 1 + round % (ranks - 1);
    std::jthread supervisor([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      pid_t& dead = others[static_cast<std::size_t>(victim)];
      ::kill(dead, SIGKILL);
      ::waitpid(dead, nullptr, 0);
      memory->set_epoch(static_cast<std::uint32_t>(round) + 2);
    });
    CudaEvent end;
    for (int i = 0; i < 100'000 && sum_once(party, exchange, end); ++i) {
    }
    supervisor.join();
    ASSERT_TRUE(party.ranks->abandoned());
    party.ranks->leave();
    const TimePoint left = Clock::now();
    party.device.sync();
    EXPECT_LT(Clock::now() - left, std::chrono::seconds(2));
    party.ranks->begin_epoch(memory->epoch());
    if (round + 1 < rounds)
      others[static_cast<std::size_t>(victim)] = start(victim);
    else
      others[static_cast<std::size_t>(victim)] = -1;
  }
  for (const pid_t other : others) {
    if (other <= 0) continue;
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
  }
  exchange.free(party);
  ::close(*fd);
}

INSTANTIATE_TEST_SUITE_P(All, CudaExchangeDeaths,
                         ::testing::Values(Deaths{"packets", "packets", 2}, Deaths{"pieces", "pieces", 2},
                                           Deaths{"cluster", "cluster", 2}, Deaths{"rows", "rows", 2},
                                           Deaths{"two_steps", "pieces, two steps", 2},
                                           Deaths{"two_steps_rows", "rows, two steps", 2},
                                           Deaths{"four", "packets, one step", 4},
                                           Deaths{"four_two_steps", "pieces, two steps", 4},
                                           Deaths{"eight_cluster", "cluster, one step", 8},
                                           Deaths{"eight_two_steps", "pieces, two steps", 8},
                                           Deaths{"eight_two_steps_rows", "rows, two steps", 8}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace troupe::model
