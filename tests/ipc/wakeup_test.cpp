#include "ipc/wakeup.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "support/patience.h"

namespace troupe::ipc {
namespace {

using namespace std::chrono_literals;

TEST(Doorbell, AConditionThatIsTrueNeverSleeps) {
  Doorbell bell;
  EXPECT_TRUE(bell.wait(Clock::now() - 1s, 0us, [] { return true; }));
}

TEST(Doorbell, DeadlineEndsTheWait) {
  Doorbell bell;
  const TimePoint start = Clock::now();
  EXPECT_FALSE(bell.wait(start + 20ms, 0us, [] { return false; }));
  EXPECT_GE(Clock::now() - start, 20ms);
  EXPECT_FALSE(bell.wait(start, kDefaultSpin, [] { return false; }));  // in the past
}

TEST(Doorbell, SpinsNoLongerThanConfiguredAndThenParks) {
  Doorbell bell;
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_FALSE(bell.wait(Clock::now() + 200ms, 1ms, [] { return false; }));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const double cpu_ms = (after.tv_sec - before.tv_sec) * 1e3 + (after.tv_nsec - before.tv_nsec) / 1e6;
  EXPECT_LT(cpu_ms, 50);  // 200 if it spun to the end
}

TEST(Doorbell, ShoutWakesWithoutTheFlag) {
  Doorbell bell;
  std::atomic<bool> ready = false;
  std::jthread other([&] {
    // The first shout() clears the flag; the sleeper finds nothing and parks again.
    for (int i = 0; i < 50; ++i) {
      bell.shout();
      std::this_thread::sleep_for(1ms);
    }
    ready = true;
    bell.shout();
  });
  EXPECT_TRUE(bell.wait(Clock::now() + test::kPatience, 0us, [&] { return ready.load(); }));
}

// Ping-pong between two processes that park every time, after random spins. The deadlines are far away, so
// one lost wake-up stops the exchange and the test fails by its timeout.
class PingPong : public ::testing::TestWithParam<int> {};

TEST_P(PingPong, LosesNoWakeup) {
  const Duration spin = std::chrono::microseconds(GetParam());
  struct Shared {
    Doorbell bells[2];
    alignas(64) std::atomic<std::uint32_t> turn{0};
  };
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* shared = new (memory) Shared;
  constexpr std::uint32_t kRounds = 20'000;
  const auto play = [&](std::uint32_t me) {
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      const std::uint32_t mine = 2 * i + me;
      const bool came = shared->bells[me].wait(Clock::now() + test::kPatience, spin, [&] {
        return shared->turn.load(std::memory_order_acquire) == mine;
      });
      if (!came) return false;
      shared->turn.store(mine + 1, std::memory_order_release);
      shared->bells[1 - me].ring();
    }
    return true;
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(play(1) ? 0 : 1);
  EXPECT_TRUE(play(0));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  munmap(memory, sizeof(Shared));
}

INSTANTIATE_TEST_SUITE_P(Spins, PingPong, ::testing::Values(0, 1, 4, 20));

}  // namespace
}  // namespace troupe::ipc
