#include "actors/engine/watchdog.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace troupe {
namespace {

using namespace std::chrono_literals;

/// A watchdog that is checked every 20 ms of a time of its own.
class WatchdogTest : public ::testing::Test {
 protected:
  /// A part that answers what it is asked while `*answers`.
  std::shared_ptr<bool> part(const char* name, bool in_engine = true) {
    auto answers = std::make_shared<bool>(true);
    watchdog_.watch({name, in_engine}, [answers, this](const std::shared_ptr<Pulse>& pulse) {
      ++asked_;
      if (*answers) pulse->beat();
    });
    return answers;
  }

  void pass(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) watchdog_.check(now_ += 20ms);
  }

  TimePoint now_ = TimePoint{} + 1h;
  Watchdog watchdog_;
  int asked_ = 0;
};

TEST_F(WatchdogTest, PartsThatAnswerAreNotSilentForLong) {
  part("a");
  part("b");
  for (int i = 0; i < 100; ++i) {
    pass(100ms);
    EXPECT_LE(watchdog_.longest().time, Watchdog::kAskPeriod + 40ms);
  }
  EXPECT_NEAR(asked_, 2 * 10'000 / 250, 8) << "four times a second";
}

TEST_F(WatchdogTest, AFrozenPartIsNamedAndNotAskedTwice) {
  part("a");
  const auto frozen = part("frozen");
  pass(1s);
  *frozen = false;
  pass(2s);
  ASSERT_NE(watchdog_.longest().part, nullptr);
  EXPECT_EQ(watchdog_.longest().part->name, "frozen");
  EXPECT_GE(watchdog_.longest().time, 1700ms);
  EXPECT_LE(watchdog_.longest().time, 2300ms);
  const int before = asked_;
  pass(1s);
  EXPECT_LE(asked_ - before, 5) << "only the other one was asked: a mailbox that nobody reads must not fill";
}

TEST_F(WatchdogTest, AWorkerIsNoPartOfTheEngine) {
  part("a");
  const auto worker = part("worker-0", false);
  pass(1s);
  *worker = false;
  pass(2s);
  EXPECT_EQ(watchdog_.longest().part->name, "worker-0");
  EXPECT_LE(watchdog_.longest_in_engine().time, Watchdog::kAskPeriod + 40ms);
}

TEST_F(WatchdogTest, APartThatBeatsUnaskedAndMayBeAway) {
  std::uint64_t count = 0;
  watchdog_.watch({"worker-0", false}, [&] { return count; });
  pass(5s);
  EXPECT_EQ(watchdog_.longest().time, Duration{}) << "it is not there";
  count = 7;
  pass(1s);
  EXPECT_GE(watchdog_.longest().time, 900ms);
  ++count;
  pass(20ms);
  EXPECT_EQ(watchdog_.longest().time, Duration{});
}

TEST_F(WatchdogTest, TimeInWhichNobodyLookedIsNoSilence) {
  part("a");
  pass(1s);
  now_ += 1h;  // the process was stopped
  watchdog_.check(now_);
  EXPECT_LE(watchdog_.longest().time, 2 * Watchdog::kAskPeriod);
}

TEST_F(WatchdogTest, APartWithPatienceIsSilentOnlyBeyondIt) {
  watchdog_.watch({"tokenizer", true, 60s}, [](const std::shared_ptr<Pulse>&) {});
  const auto other = part("other");
  pass(50s);
  EXPECT_LE(watchdog_.longest().time, Watchdog::kAskPeriod + 40ms) << "it may work for so long";
  pass(12s);
  EXPECT_EQ(watchdog_.longest().part->name, "tokenizer");
  EXPECT_NEAR(std::chrono::duration<double>(watchdog_.longest().time).count(), 2, 0.1);
  *other = false;
  pass(3s);
  EXPECT_EQ(watchdog_.longest().part->name, "tokenizer") << "the time beyond their patience compares";
}

TEST_F(WatchdogTest, APartThatWasReplacedIsAskedAgain) {
  bool there = true;
  watchdog_.watch({"tokenizer", true, 60s}, [&](const std::shared_ptr<Pulse>& pulse) {
    if (std::exchange(there, true)) pulse->beat();
  });
  pass(1s);
  there = false;  // who is asked next has died
  pass(120s);
  EXPECT_EQ(watchdog_.longest().time, Duration{});
}

}  // namespace
}  // namespace troupe
