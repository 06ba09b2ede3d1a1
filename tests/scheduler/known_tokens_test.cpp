// Ids that the choices of a prompt share, and each one's own behind them.
#include "actors/scheduler/known_tokens.h"

#include <gtest/gtest.h>

#include "actors/scheduler/scheduler.h"
#include "scheduler/rig.h"

namespace troupe::test {
namespace {

std::vector<TokenId> list(std::span<const TokenId> ids) { return {ids.begin(), ids.end()}; }

TEST(KnownTokens, AreTheGivenOnesAndThenItsOwn) {
  const auto given = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2, 3});
  KnownTokens first(given), second(given);
  first.push_back(4);
  first.push_back(5);
  second.push_back(9);
  EXPECT_EQ(first.size(), 5u);
  EXPECT_EQ(second.size(), 4u);
  EXPECT_EQ(first.run(0, 9).data(), second.run(0, 9).data()) << "one copy";
  EXPECT_EQ(list(first.run(1, 9)), (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(list(first.run(1, 1)), (std::vector<TokenId>{2}));
  EXPECT_EQ(list(first.run(3, 9)), (std::vector<TokenId>{4, 5}));
  std::vector<TokenId> scratch;
  EXPECT_EQ(list(first.range(0, 3, scratch)), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(list(first.range(4, 1, scratch)), (std::vector<TokenId>{5}));
  EXPECT_TRUE(scratch.empty());
  EXPECT_EQ(list(first.range(1, 4, scratch)), (std::vector<TokenId>{2, 3, 4, 5}));
  EXPECT_TRUE(first.range(5, 0, scratch).empty());
  EXPECT_EQ(KnownTokens().size(), 0u);
}

TEST(KnownTokens, StandTogetherWhereverTheyAreKept) {
  KnownTokens tokens(std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{0, 1, 2}), {3, 4});
  for (TokenId id = 5; id < 30; ++id) tokens.push_back(id);
  std::vector<TokenId> scratch;
  for (std::size_t begin = 0; begin < tokens.size(); ++begin) {
    for (std::size_t count = 1; begin + count <= tokens.size(); ++count) {
      const std::vector<TokenId> ids = list(tokens.range(begin, count, scratch));
      ASSERT_EQ(ids.size(), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(ids[i], static_cast<TokenId>(begin + i));
    }
  }
}

TEST(StopIds, AreToldFromAllOthers) {
  const StopIds stops({99'998, 5, 64});
  for (TokenId id = 0; id < 100'000; ++id)
    ASSERT_EQ(stops.contains(id), id == 99'998 || id == 5 || id == 64) << id;
  EXPECT_FALSE(StopIds().contains(0));
}

}  // namespace
}  // namespace troupe::test
