// Ids that are appended one by one and read in pieces or as a whole.
#include "base/token_list.h"

#include <gtest/gtest.h>

#include <numeric>

namespace troupe::test {
namespace {

std::vector<TokenId> piecewise(const TokenList& list) {
  std::vector<TokenId> all;
  while (all.size() < list.size()) {
    const std::span<const TokenId> run = list.run(all.size());
    if (run.empty()) break;
    all.insert(all.end(), run.begin(), run.end());
  }
  return all;
}

TEST(TokenList, IsTheSameInPiecesAndAsAWhole) {
  for (std::size_t given : {0, 1, 7}) {
    std::vector<TokenId> expected(given);
    std::iota(expected.begin(), expected.end(), 100);
    TokenList list(expected);
    for (TokenId id = 0; id < 40; ++id) {
      list.push_back(id);
      expected.push_back(id);
      ASSERT_EQ(list.size(), expected.size());
      ASSERT_EQ(piecewise(list), expected);
      for (std::size_t begin = 0; begin < expected.size(); ++begin)
        ASSERT_EQ(list.run(begin).front(), expected[begin]);
    }
    EXPECT_LT(list.gathered().size(), expected.size());
    EXPECT_EQ(list.whole(), expected);
    EXPECT_EQ(list.gathered(), expected);
  }
}

TEST(TokenList, GoesOnBehindWhatWasChanged) {
  TokenList list;
  for (TokenId id = 0; id < 11; ++id) list.push_back(id);
  list.whole().resize(3);
  list.push_back(9);
  EXPECT_EQ(piecewise(list), (std::vector<TokenId>{0, 1, 2, 9}));
  list.clear();
  EXPECT_EQ(list.size(), 0u);
  list.push_back(5);
  EXPECT_EQ(list.whole(), std::vector<TokenId>{5});
}

}  // namespace
}  // namespace troupe::test
