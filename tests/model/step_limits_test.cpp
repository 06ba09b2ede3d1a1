#include "model/cuda/step_limits.h"

#include <gtest/gtest.h>

#include "config/options.h"
#include "model/ranks/patience.h"

namespace troupe::model {
namespace {

using namespace std::chrono_literals;

TEST(StepLimits, AreWhatIsGivenUntilEnoughStepsHaveEnded) {
  StepLimits limits(60s);
  for (int i = 0; i < 7; ++i) limits.ended(StepKind::decode, 10ms);
  EXPECT_EQ(limits.limit(StepKind::decode), Duration(60s));
  limits.ended(StepKind::decode, 10ms);
  EXPECT_EQ(limits.limit(StepKind::decode), StepLimits::kLeast) << "20 times 10 ms are less";
  EXPECT_EQ(limits.limit(StepKind::prompt), Duration(60s)) << "each kind has its own";
}

TEST(StepLimits, AreTwentyTimesTheNinetyNinthPercentile) {
  StepLimits limits(60s);
  for (int i = 0; i < 256; ++i) limits.ended(StepKind::prompt, i % 64 == 0 ? 2s : 1s);  // 1.6 % are slow
  EXPECT_EQ(limits.limit(StepKind::prompt), Duration(40s));
  for (int i = 0; i < 256; ++i) limits.ended(StepKind::prompt, 1s);
  EXPECT_EQ(limits.limit(StepKind::prompt), Duration(20s)) << "old steps are forgotten";
}

TEST(StepLimits, ARankWaitsUntilOneThatStandsStillHasBeenKilled) {
  const Duration silence = std::chrono::seconds(config::ProcessOptions{}.worker_timeout_s);
  const Duration patience = step_patience({0, 2}, silence);
  EXPECT_GT(patience, silence + 2s) << "the supervisor looks twice a second";
  StepLimits limits(patience, patience);
  for (int i = 0; i < 256; ++i) limits.ended(StepKind::decode, 10ms);
  EXPECT_EQ(limits.limit(StepKind::decode), patience);
  for (int i = 0; i < 256; ++i) limits.ended(StepKind::decode, 1s);
  EXPECT_EQ(limits.limit(StepKind::decode), Duration(20s)) << "slow steps have longer";
  EXPECT_EQ(step_patience({}, silence), silence) << "one rank waits for nobody";
}

}  // namespace
}  // namespace troupe::model
