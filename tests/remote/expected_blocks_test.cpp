// Which blocks of prompts that are being computed are asked for, and which are kept.
#include "actors/remote/expected_blocks.h"

#include <gtest/gtest.h>

namespace troupe::remote {
namespace {

BlockHash name(std::uint64_t number) { return {number + 1, number}; }
std::vector<std::byte> bytes(std::size_t count, int value = 1) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST(ExpectedBlocks, OnlyWhatIsExpectedIsAskedForOnceAndInTheOrderOfTheNames) {
  ExpectedBlocks expected;
  expected.named(8, name(8));
  EXPECT_FALSE(expected.has_next());
  expected.expect(std::vector{name(1), name(2), name(3)});
  expected.named(20, name(2));
  expected.named(10, name(1));
  expected.named(21, name(2));
  ASSERT_TRUE(expected.has_next());
  EXPECT_EQ(expected.next()->block, 20);
  EXPECT_EQ(expected.next()->block, 10);
  EXPECT_FALSE(expected.next());
}

TEST(ExpectedBlocks, AFewAreAskedForAtATime) {
  ExpectedBlocks expected;
  for (std::uint64_t i = 0; i <= ExpectedBlocks::kMostAsked; ++i) {
    expected.expect(std::vector{name(i)});
    expected.named(static_cast<BlockId>(i), name(i));
  }
  for (std::size_t i = 0; i < ExpectedBlocks::kMostAsked; ++i) EXPECT_TRUE(expected.next());
  EXPECT_FALSE(expected.next());
  EXPECT_FALSE(expected.has_next());
  expected.answered(name(0));
  EXPECT_EQ(expected.next()->contents, name(ExpectedBlocks::kMostAsked));
}

TEST(ExpectedBlocks, WhatHasComeIsKeptUntilItIsTakenOrForgotten) {
  ExpectedBlocks expected;
  expected.answered(name(1), bytes(10, 7));
  expected.answered(name(2), bytes(10, 8));
  EXPECT_EQ(expected.take(name(1)), bytes(10, 7));
  EXPECT_TRUE(expected.take(name(1)).empty());
  expected.clear();
  EXPECT_TRUE(expected.take(name(2)).empty());
}

TEST(ExpectedBlocks, WhatCameFirstGoesFirstWhenThereIsNoRoom) {
  ExpectedBlocks expected;
  constexpr std::size_t kThird = ExpectedBlocks::kMostBytes / 3;
  for (std::uint64_t i = 0; i < 4; ++i) expected.answered(name(i), bytes(kThird));
  EXPECT_TRUE(expected.take(name(0)).empty());
  for (std::uint64_t i = 1; i < 4; ++i) EXPECT_EQ(expected.take(name(i)).size(), kThird);
}

TEST(ExpectedBlocks, WhatIsAskedForOtherwiseIsNotAskedForAgain) {
  ExpectedBlocks expected;
  expected.expect(std::vector{name(1), name(2)});
  expected.named(10, name(1));
  expected.forget(name(1));
  expected.forget(name(2));
  expected.named(11, name(2));
  EXPECT_FALSE(expected.has_next());
}

}  // namespace
}  // namespace troupe::remote
