#include "actors/scheduler/draft_control.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace troupe {
namespace {

/// Tokens a row and seconds of a step with so many drafts.
using Costs = std::function<std::pair<double, double>(std::int32_t)>;

/// How often each number of drafts was chosen in so many steps.
std::map<std::int32_t, int> run(DraftControl& control, int steps, const Costs& costs, std::int32_t rows = 100,
                                std::int32_t most = 8) {
  std::map<std::int32_t, int> chosen;
  for (int i = 0; i < steps; ++i) {
    const std::int32_t drafts = control.drafts_for(rows, most);
    ++chosen[drafts];
    const auto [tokens, seconds] = costs(drafts);
    // As many tokens, of which every row has all or one more.
    std::vector<std::int32_t> yields;
    double told = 0;
    for (std::int32_t row = 1; row <= rows; ++row) {
      yields.push_back(static_cast<std::int32_t>(tokens * row - told));
      told += yields.back();
    }
    control.learn(rows, drafts, yields, seconds);
  }
  return chosen;
}

/// Each draft token yields so much of a token, and takes so much of the time of a step.
Costs linear(double yield, double cost) {
  return [=](std::int32_t drafts) { return std::pair(1 + yield * drafts, 0.01 * (1 + cost * drafts)); };
}

class DraftControlTest : public ::testing::Test {
 protected:
  DraftControlTest() { control.attach(4); }
  DraftControl control;
};

TEST_F(DraftControlTest, AWorkerThatMakesNoneIsAskedForNone) {
  EXPECT_EQ(DraftControl().drafts_for(1, 8), 0);
  control.attach(0);
  EXPECT_EQ(control.drafts_for(1, 8), 0);
}

TEST_F(DraftControlTest, WhatPaysIsKept) {
  const auto chosen = run(control, 1000, linear(0.8, 0.1));
  EXPECT_GT(chosen.at(4), 950);
  EXPECT_GE(chosen.at(0), DraftControl::kFirstSteps) << "the others are tried now and then";
  EXPECT_GE(chosen.at(2), DraftControl::kFirstSteps);
}

TEST_F(DraftControlTest, WhatDoesNotPayCostsAFewSteps) {
  const auto chosen = run(control, 1000, linear(0, 0.3));
  EXPECT_GT(chosen.at(0), 950);
  EXPECT_LE(
      chosen.at(4) + chosen.at(2),
      2 * DraftControl::kFirstSteps + DraftControl::kProbeSteps * (1000 / DraftControl::kProbeEvery + 1));
}

TEST_F(DraftControlTest, BetweenTheExtremesLiesHalf) {
  const auto costs = [](std::int32_t drafts) {
    return std::pair(1 + 0.8 * std::min(drafts, 2), 0.01 * (1 + 0.2 * drafts));
  };
  EXPECT_GT(run(control, 1000, costs).at(2), 950);
}

TEST_F(DraftControlTest, TextsThatChangeAreNoticed) {
  run(control, 500, linear(0.8, 0.1));
  run(control, 300, linear(0, 0.3));
  EXPECT_EQ(run(control, 60, linear(0, 0.3)).count(4), 0u);
  run(control, 600, linear(0.8, 0.1));
  EXPECT_GT(run(control, 100, linear(0.8, 0.1)).at(4), 90);
}

TEST_F(DraftControlTest, DraftsThatComeAStepLaterAreFound) {
  run(control, 500, linear(0, 0.3));
  ASSERT_EQ(control.drafts_for(100, 8), 0);
  std::int32_t asked_before = 0;
  int with = 0;
  for (int step = 0; step < 400; ++step) {
    const std::int32_t drafts = control.drafts_for(100, 8);
    const std::int32_t made = std::min(drafts, asked_before);
    asked_before = drafts;
    const std::vector<std::int32_t> yields(100, 1 + made);
    control.learn(100, drafts, yields, 0.01 * (1 + 0.1 * drafts));
    with += drafts == 4 ? 1 : 0;
  }
  EXPECT_GT(with, 100);
}

TEST_F(DraftControlTest, SizesOfStepsAreMeasuredApart) {
  run(control, 300, linear(0.8, 0.1), 1);
  run(control, 300, linear(0, 0.3), 64);
  EXPECT_EQ(control.drafts_for(1, 8), 4);
  EXPECT_EQ(control.drafts_for(64, 8), 0);
}

TEST_F(DraftControlTest, NeverMoreThanThereIsRoomFor) {
  EXPECT_EQ(control.drafts_for(100, 3), 2);
  EXPECT_EQ(control.drafts_for(100, 1), 0);
  run(control, 300, linear(0.8, 0.1));
  EXPECT_LE(control.drafts_for(100, 2), 2);
  EXPECT_GT(run(control, 300, linear(0.8, 0.1), 100, 2).at(2), 280);
}

TEST_F(DraftControlTest, OneDraftIsAChoiceOfTwo) {
  control.attach(1);
  EXPECT_GT(run(control, 300, linear(0.8, 0.1)).at(1), 280);
}

}  // namespace
}  // namespace troupe
