// The memory in which ranks meet: sums and collections of all sizes, ends of epochs, ranks that are late or
// killed.
#include "model/ranks/rank_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "model/ranks/collective.h"

namespace troupe::model {
namespace {

using std::chrono::milliseconds;

class RankMemoryTest : public ::testing::Test {
 protected:
  ~RankMemoryTest() override {
    if (fd_ >= 0) ::close(fd_);
  }
  int make(int ranks) {
    const Result<int> made = create_rank_memory(ranks);
    EXPECT_TRUE(made.ok());
    return fd_ = *made;
  }
  /// Runs body(rank) on a thread for each rank.
  template <class Body>
  static void on_ranks(int ranks, Body&& body) {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
  }

  int fd_ = -1;
};

const auto kNothing = [] {};

TEST_F(RankMemoryTest, SumsAreInTheOrderOfTheRanks) {
  constexpr int kRanks = 3;
  const int fd = make(kRanks);
  // More than two slots, so that slots are used again; numbers whose sum depends on the order.
  const std::size_t count = 2 * RankMeeting::kSlotBytes / sizeof(float) + 77;
  std::vector<std::vector<float>> in(kRanks, std::vector<float>(count)),
      out(kRanks, std::vector<float>(count));
  std::mt19937 chance(1);
  std::uniform_real_distribution<float> exponent(-20, 20);
  for (auto& values : in) {
    for (float& value : values) value = std::exp2(exponent(chance));
  }
  on_ranks(kRanks, [&](int r) {
    Cpu device({.threads = 2, .pin = false});
    auto ranks = Collective<Cpu>::attach(fd, {r, kRanks});
    ASSERT_TRUE(ranks.ok());
    const auto at = static_cast<std::size_t>(r);
    (*ranks)->all_reduce(device, in[at].data(), out[at].data(), count);
    EXPECT_FALSE((*ranks)->abandoned());
    if (r != 1) return (*ranks)->all_reduce(device, in[at].data(), in[at].data(), 5);
    std::vector<float> same = in[at];  // `in` may be `out`
    (*ranks)->all_reduce(device, same.data(), same.data(), 5);
    in[at] = same;
  });
  const std::vector<float> first(in[0].begin(), in[0].begin() + 5);
  for (std::size_t i = 5; i < count; ++i) {
    const float sum = in[0][i] + in[1][i] + in[2][i];
    for (const auto& values : out) ASSERT_EQ(values[i], sum) << i;
  }
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(in[1][i], first[i]);
}

TEST_F(RankMemoryTest, ColumnsOfRowsAreGathered) {
  constexpr int kRanks = 3, kRows = 3000;
  const int fd = make(kRanks);
  const std::vector<int> first{0, 64, 160, 161};
  on_ranks(kRanks, [&](int r) {
    Cpu device({.threads = 1, .pin = false});
    auto ranks = Collective<Cpu>::attach(fd, {r, kRanks});
    ASSERT_TRUE(ranks.ok());
    const int width = first[static_cast<std::size_t>(r) + 1] - first[static_cast<std::size_t>(r)];
    std::vector<float> in(kRows * 96, -1), out(kRows * 192, -1);
    for (int row = 0; row < kRows; ++row) {
      for (int c = 0; c < width; ++c) {
        in[static_cast<std::size_t>(row * 96 + c)] =
            static_cast<float>(row * 1000 + first[static_cast<std::size_t>(r)] + c);
      }
    }
    (*ranks)->all_gather(device, in.data(), 96, out.data(), 192, kRows, first);
    for (int row = 0; row < kRows; ++row) {
      for (int c = 0; c < 192; ++c) {
        ASSERT_EQ(out[static_cast<std::size_t>(row * 192 + c)],
                  c < 161 ? static_cast<float>(row * 1000 + c) : -1.0f);
      }
    }
  });
}

// Numbers of meetings wrap after some weeks of steps.
TEST_F(RankMemoryTest, RanksMeetAcrossTheWrapOfTheNumbers) {
  const int fd = make(3);
  constexpr std::uint32_t kFirst = 0xffffffff - 20;
  on_ranks(3, [&](int r) {
    auto meeting = RankMeeting::attach(fd, {r, 3});
    ASSERT_TRUE(meeting.ok());
    meeting->begin_epoch(1, kFirst);
    for (int round = 0; round < 40; ++round) {
      const auto mine = static_cast<unsigned char>(3 * round + r);
      meeting->mine()[0] = std::byte{mine};
      if (r == round % 3) std::this_thread::sleep_for(milliseconds(2));  // the others wait for this one
      ASSERT_TRUE(meeting->meet(kNothing)) << round;
      for (int other = 0; other < 3; ++other) {
        const auto expected = static_cast<unsigned char>(3 * round + other);
        ASSERT_EQ(meeting->message_of(other)[0], std::byte{expected}) << round;
      }
    }
  });
}

TEST_F(RankMemoryTest, TheEndOfAnEpochWakesWhoWaits) {
  const int fd = make(2);
  auto waiting = RankMeeting::attach(fd, {0, 2});
  auto supervisor = RankMemory::attach(fd);
  ASSERT_TRUE(waiting.ok() && supervisor.ok());
  int naps = 0;
  std::jthread end([&] {
    std::this_thread::sleep_for(milliseconds(120));
    supervisor->set_epoch(7);
  });
  const auto began = std::chrono::steady_clock::now();
  EXPECT_FALSE(waiting->meet([&] { ++naps; }));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_GE(naps, 1) << "a rank that waits says so";
  EXPECT_TRUE(waiting->abandoned() && waiting->late().ok());
  EXPECT_FALSE(waiting->meet(kNothing)) << "and at once";

  // The next epoch begins with its first meeting, whatever the old one left.
  waiting->begin_epoch(7);
  std::jthread other([&] {
    auto second = RankMeeting::attach(fd, {1, 2});
    ASSERT_TRUE(second.ok());
    second->mine()[0] = std::byte{42};
    EXPECT_TRUE(second->meet(kNothing));
  });
  waiting->mine()[0] = std::byte{41};
  EXPECT_TRUE(waiting->meet(kNothing));
  EXPECT_EQ(waiting->message_of(1)[0], std::byte{42});
}

TEST_F(RankMemoryTest, ARankOfAnOldEpochMeetsNobody) {
  const int fd = make(2);
  auto old = RankMeeting::attach(fd, {1, 2});
  auto supervisor = RankMemory::attach(fd);
  supervisor->set_epoch(2);
  auto newer = RankMeeting::attach(fd, {0, 2});
  EXPECT_FALSE(old->meet(kNothing));
  newer->set_patience(milliseconds(100));
  EXPECT_FALSE(newer->meet(kNothing)) << "the other one is of another epoch";
  EXPECT_NE(newer->late().message.find("rank 1 of 2 has not come"), std::string::npos)
      << newer->late().message;
}

// A rank that has not heard of the new epoch yet must not join it: the others would wait for its steps.
TEST_F(RankMemoryTest, ARankIsInTheEpochThatItWasTold) {
  const int fd = make(2);
  auto supervisor = RankMemory::attach(fd);
  auto late = RankMeeting::attach(fd, {1, 2});
  supervisor->set_epoch(2);
  late->begin_epoch(1);
  EXPECT_FALSE(late->meet(kNothing));
  EXPECT_TRUE(late->abandoned() && late->late().ok()) << "at once, and nobody was late";
  late->begin_epoch(2);
  std::jthread other([&] { EXPECT_TRUE(RankMeeting::attach(fd, {0, 2})->meet(kNothing)); });
  EXPECT_TRUE(late->meet(kNothing));
}

TEST_F(RankMemoryTest, KilledAnywhereNobodyHangs) {
  const int fd = make(2);
  auto supervisor = RankMemory::attach(fd);
  auto here = RankMeeting::attach(fd, {0, 2});
  ASSERT_TRUE(supervisor.ok() && here.ok());
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto other = RankMeeting::attach(fd, {1, 2});
      if (!other.ok()) _exit(1);
      for (unsigned char value = 0; other->meet(kNothing); ++value)
        std::fill_n(other->mine(), 4096, std::byte{value});
      _exit(2);  // the epoch does not end while it lives
    }
    std::jthread killer([&, round] {
      std::this_thread::sleep_for(milliseconds(2) + std::chrono::microseconds(137 * round));
      kill(child, SIGKILL);
      int how = 0;
      waitpid(child, &how, 0);
      EXPECT_TRUE(WIFSIGNALED(how));
      supervisor->set_epoch(supervisor->epoch() + 1);
    });
    long meetings = 0;
    while (here->meet(kNothing)) ++meetings;
    EXPECT_TRUE(here->late().ok()) << here->late().message;
    killer.join();
    here->begin_epoch(supervisor->epoch());
  }
}

TEST_F(RankMemoryTest, BadMemoryAndBadPlacesAreRefused) {
  EXPECT_FALSE(create_rank_memory(0).ok());
  EXPECT_FALSE(create_rank_memory(kMostRanks + 1).ok());
  const int fd = make(2);
  EXPECT_NE(RankMeeting::attach(fd, {2, 2}).status().message.find("rank 2 of 2"), std::string::npos);
  EXPECT_NE(RankMeeting::attach(fd, {0, 3}).status().message.find("the memory of 2 ranks"),
            std::string::npos);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_FALSE(RankMemory::attach(pipe_ends[0]).ok());
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  EXPECT_FALSE(RankMemory::attach(-1).ok());
}

}  // namespace
}  // namespace troupe::model
