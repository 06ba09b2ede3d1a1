#include "gpu/overlap_check.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

class OverlapCheckTest : public ::testing::Test {
 protected:
  bool holds(const Overlap& overlap) { return check.launched(overlap).empty(); }

  OverlapCheck check;
  int weights[4]{}, activations[4]{}, table[4]{};
};

TEST_F(OverlapCheckTest, ConstantMemoryLiesOutsideOfWhatStepsWrite) {
  check.set_step_memory(activations, sizeof activations);
  EXPECT_TRUE(holds({.reads_constant = weights}));
  EXPECT_TRUE(holds({.reads_constant = activations + 4})) << "right behind it";
  EXPECT_FALSE(holds({.reads_constant = activations}));
  EXPECT_FALSE(holds({.reads_constant = activations + 3}));
  check.set_step_memory(activations, 0);
  EXPECT_TRUE(holds({.reads_constant = activations}));
}

TEST_F(OverlapCheckTest, SettledTakesAKernelInBetweenThatHoldsTheNext) {
  EXPECT_TRUE(holds({.holds_next = true, .writes_settled = table}));
  EXPECT_FALSE(holds({.reads_settled = table})) << "the writer itself may still run";
  EXPECT_TRUE(holds({}));
  EXPECT_FALSE(holds({.reads_settled = table})) << "the kernel in between lets the next one start too early";
  EXPECT_TRUE(holds({.holds_next = true}));
  EXPECT_TRUE(holds({.reads_settled = table}));
  EXPECT_TRUE(holds({.reads_settled = table})) << "and so it stays";
  EXPECT_TRUE(holds({.writes_settled = table}));
  EXPECT_FALSE(holds({.reads_settled = table})) << "until it is written again";
}

TEST_F(OverlapCheckTest, TheReaderItselfDoesNotHoldItself) {
  EXPECT_TRUE(holds({.writes_settled = table}));
  EXPECT_FALSE(holds({.holds_next = true, .reads_settled = table}));
}

TEST_F(OverlapCheckTest, MemoryThatStepsWriteNeedsAKnownWriter) {
  EXPECT_TRUE(holds({.reads_settled = table})) << "written before all steps, for all that is known";
  check.set_step_memory(table, sizeof table);
  EXPECT_FALSE(holds({.reads_settled = table}));
  EXPECT_TRUE(holds({.writes_settled = table}));
  EXPECT_TRUE(holds({.holds_next = true}));
  EXPECT_TRUE(holds({.reads_settled = table}));
}

}  // namespace
}  // namespace troupe
