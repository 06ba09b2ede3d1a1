// Fronts that are behind, and the destinations of tokens.
#include "actors/scheduler/front_table.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(FrontTable, HoldsTheSequencesOfOneFront) {
  ScheduledSequences table;
  const std::uint32_t a = table.create({1, 1}), b = table.create({1, 2});
  table[b].front = 1;
  FrontTable fronts;
  fronts.hold(1, true, table);
  EXPECT_TRUE(fronts.is_held(1));
  EXPECT_FALSE(table[a].held);
  EXPECT_TRUE(table[b].held);
  fronts.hold(1, false, table);
  EXPECT_FALSE(fronts.is_held(1));
  EXPECT_FALSE(table[b].held);
}

TEST(FrontTable, ADestinationOfADroppedFrontIsUsedAgain) {
  FrontTable fronts;
  EXPECT_EQ(fronts.destination(0, 0), 0u);
  EXPECT_EQ(fronts.destination(1, 0), 1u);
  EXPECT_EQ(fronts.destination(0, 0), 0u);
  ScheduledSequences table;
  fronts.hold(0, true, table);
  fronts.drop(0);
  EXPECT_FALSE(fronts.is_held(0));
  EXPECT_EQ(fronts.destination(1, 3), 0u);
  EXPECT_EQ(fronts.destination(1, 0), 1u);
}

TEST(FrontTable, AReportNamesFrontHostAndPosition) {
  FrontTable fronts;
  ScheduledSequence s;
  s.key = {1, 9};
  s.front = 2;
  s.destination = fronts.destination(2, 5);
  s.scheduled_ns = 77;
  s.cached_tokens = 3;
  StepOutput out;
  const SequenceTokens& first = fronts.report(s, out);
  EXPECT_EQ(out.hosts[s.destination].front, 2u);
  EXPECT_EQ(out.hosts[s.destination].host, 5u);
  EXPECT_EQ(first.position, 0);
  EXPECT_EQ(first.scheduled_ns, 77);
  EXPECT_EQ(first.cached_tokens, 3);
  s.tokens.push_back(4);
  const SequenceTokens& second = fronts.report(s, out);
  EXPECT_EQ(second.position, 1);
  EXPECT_EQ(second.scheduled_ns, 0) << "only the first report has it";
}

}  // namespace
}  // namespace troupe
