// KV blocks reserved at admission instead of preemption (SchedulerOptions::preempts is false).
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

config::SchedulerOptions reserving(double ratio) {
  config::SchedulerOptions options;
  options.preempts = false;
  options.kv_cache_ratio = ratio;
  return options;
}

/// 40 blocks of four tokens, and far more slots than fit.
Setting forty_blocks() {
  return {.blocks = 40, .block_tokens = 4, .slots = 16, .budget = 64, .max_length = 160};
}

/// Plans and commits until nothing is left; returns the most sequences that ran at once.
int most_at_once(Rig& rig) {
  int most = 0;
  for (int i = 0; i < 10'000 && !rig.scheduler.idle(); ++i) {
    most = std::max(most, rig.scheduler.running());
    if (rig.plan()) rig.commit(5);
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.scheduler.totals().preempted, 0u);
  EXPECT_EQ(rig.scheduler.totals().stalled_rows, 0u) << "a reserved block is granted before it is needed";
  return most;
}

TEST(Reserving, AdmitsWhatPromptsAndAnswersHaveBlocksFor) {
  // Each prompt takes 2 blocks and each answer 2 more.
  for (const auto& [ratio, expected] : {std::pair(0.5, 10), std::pair(0.75, 5), std::pair(0.25, 5)}) {
    Rig rig(forty_blocks(), reserving(ratio));
    for (std::uint64_t key = 1; key <= 14; ++key) rig.add(key, 8, 9);
    EXPECT_EQ(most_at_once(rig), expected) << ratio;
  }
}

TEST(Reserving, TheSameLoadPreemptsWithoutIt) {
  Rig rig(forty_blocks());
  for (std::uint64_t key = 1; key <= 14; ++key) rig.add(key, 8, 32);
  for (int i = 0; i < 10'000 && !rig.scheduler.idle(); ++i) {
    if (rig.plan()) rig.commit(5);
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_GT(rig.scheduler.totals().preempted, 0u);
}

TEST(Reserving, ARequestLargerThanAShareRunsAlone) {
  Rig rig(forty_blocks(), reserving(0.75));
  rig.add(1, 8, 9);
  rig.add(2, 10, 140);  // an answer of 35 blocks, where all answers have 10
  rig.add(3, 8, 9);
  rig.exchange();
  EXPECT_EQ(rig.scheduler.running(), 2) << "the third passes the second";
  EXPECT_EQ(most_at_once(rig), 2);
}

TEST(Reserving, SmallRequestsPassALargeOneABoundedNumberOfTimes) {
  Rig rig(forty_blocks(), reserving(0.75));
  rig.add(1, 8, 9);
  rig.add(2, 10, 140);
  std::uint64_t key = 2;
  bool finished = false;
  for (int i = 0; i < 1000 && !finished; ++i) {
    rig.add(++key, 8, 9);
    if (!rig.plan()) continue;
    rig.commit(5);
    for (const SequenceTokens& event : rig.events()) {
      finished |= event.key == RequestKey{1, 2} && event.finish == Finish::length;
    }
  }
  EXPECT_TRUE(finished);
}

}  // namespace
}  // namespace troupe::test
