#include "model/ranks/sum_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace troupe::model {
namespace {

TEST(SumTimes, FromTheFirstSizeBehindWhichTwoStepsAlwaysWin) {
  EXPECT_EQ(two_steps_from(std::vector<SumTimes>{{16, 4, 8}, {32, 5, 8}, {64, 9, 8}, {128, 17, 10}}), 64u);
  EXPECT_EQ(two_steps_from(std::vector<SumTimes>{{16, 9, 8}, {32, 5, 8}, {64, 9, 8}}), 64u)
      << "one was disturbed";
  EXPECT_EQ(two_steps_from(std::vector<SumTimes>{{16, 9, 8}, {32, 10, 8}}), 16u);
}

TEST(SumTimes, OneStepWhereTheyAreEqual) {
  EXPECT_EQ(two_steps_from(std::vector<SumTimes>{{16, 4, 8}, {32, 8, 7.7}}), kernels::kNeverInTwoSteps);
  EXPECT_EQ(two_steps_from({}), kernels::kNeverInTwoSteps);
}

TEST(SumTimes, WhatIsExpectedWhereNothingWasMeasured) {
  EXPECT_EQ(kernels::expected_two_steps_from(2), kernels::kNeverInTwoSteps);
  EXPECT_GT(kernels::expected_two_steps_from(4), kernels::expected_two_steps_from(8));
  for (int ranks = 2; ranks <= kernels::kMostPeers; ++ranks) {
    EXPECT_LE(kTimedSums[std::size(kTimedSums) - 1],
              static_cast<std::size_t>(ranks) * kernels::most_added_by_one(ranks))
        << "one exchange";
    EXPECT_LE(kTimedSums[std::size(kTimedSums) - 1], kernels::most_in_pieces(ranks));
  }
}

}  // namespace
}  // namespace troupe::model
