// The ring of plans that are not answered yet.
#include "actors/scheduler/steps_in_flight.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

std::uint64_t push(StepsInFlight& steps, std::uint32_t sequence) {
  steps.begin().rows.push_back({sequence});
  return steps.push();
}

TEST(StepsInFlight, AreNumberedAndAnsweredInOrder) {
  StepsInFlight steps;
  EXPECT_TRUE(steps.full()) << "no worker takes a step";
  steps.attach(2);
  EXPECT_EQ(push(steps, 5), 1u);
  EXPECT_EQ(push(steps, 6), 2u);
  EXPECT_TRUE(steps.full());
  EXPECT_EQ(steps.oldest_number(), 1u);
  EXPECT_EQ(steps.newest().rows[0].sequence, 6u);
  EXPECT_EQ(steps.pop().rows[0].sequence, 5u);
  EXPECT_EQ(push(steps, 7), 3u);
  EXPECT_EQ(steps.oldest_number(), 2u);
  EXPECT_EQ(steps.pop().rows[0].sequence, 6u);
  EXPECT_EQ(steps.pop().rows[0].sequence, 7u);
  EXPECT_TRUE(steps.empty());
}

TEST(StepsInFlight, AStepThatIsNotPushedIsNotInFlight) {
  StepsInFlight steps;
  steps.attach(1);
  steps.begin().rows.push_back({4});
  EXPECT_TRUE(steps.empty());
  EXPECT_TRUE(steps.begin().rows.empty()) << "rows of the step that was given up";
  EXPECT_EQ(steps.next_number(), 1u);
}

TEST(StepsInFlight, KnowWhetherOneSequenceIsAlone) {
  StepsInFlight steps;
  steps.attach(3);
  EXPECT_TRUE(steps.has_only(1));
  push(steps, 1), push(steps, 1);
  EXPECT_TRUE(steps.has_only(1));
  push(steps, 2);
  EXPECT_FALSE(steps.has_only(1));
  steps.pop(), steps.pop();
  EXPECT_TRUE(steps.has_only(2));
}

TEST(StepsInFlight, ANewWorkerBeginsAtOne) {
  StepsInFlight steps;
  steps.attach(2);
  push(steps, 1);
  steps.clear();
  EXPECT_TRUE(steps.empty());
  steps.attach(1);
  EXPECT_EQ(push(steps, 1), 1u);
  EXPECT_TRUE(steps.full());
}

}  // namespace
}  // namespace troupe
