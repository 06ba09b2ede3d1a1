// What is drafted from the tokens of a sequence, and from a prediction.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/drafts/ngram_drafter.h"
#include "model/drafts/predicted_drafter.h"
#include "model/support/oracle_drafter.h"

namespace troupe::model {
namespace {

using Tokens = std::vector<TokenId>;

Tokens drafted(NgramDrafter& drafter, const Tokens& ids, std::size_t most = 4, std::uint32_t slot = 0) {
  Tokens out(most);
  out.resize(drafter.draft(slot, ids, out).count);
  return out;
}

TEST(NgramDrafter, DraftsWhatFollowedBefore) {
  NgramDrafter drafter(1, 2, 5);
  EXPECT_EQ(drafted(drafter, {1, 2, 3, 4, 5, 1, 2}, 3), (Tokens{3, 4, 5}));
}

TEST(NgramDrafter, AShorterNgramThanTheShortestIsNoReason) {
  NgramDrafter drafter(1, 2, 5);
  EXPECT_EQ(drafted(drafter, {1, 2, 3, 4, 2}), Tokens{});
  EXPECT_EQ(drafted(drafter, {1}), Tokens{});
}

TEST(NgramDrafter, TheLongestNgramDecidesAndAmongEqualsTheLatest) {
  NgramDrafter drafter(2, 2, 3);
  EXPECT_EQ(drafted(drafter, {9, 1, 2, 30, 8, 1, 2, 40, 9, 1, 2}, 1), Tokens{30})
      << "9 1 2 is longer than 1 2";
  EXPECT_EQ(drafted(drafter, {1, 2, 30, 7, 1, 2, 40, 7, 1, 2}, 1, 1), Tokens{40});
}

TEST(NgramDrafter, ACycleGoesOnBeyondTheEnd) {
  NgramDrafter drafter(1, 1, 4);
  EXPECT_EQ(drafted(drafter, {5, 6, 7, 5, 6, 7}, 7), (Tokens{5, 6, 7, 5, 6, 7, 5}));
  drafter.start(0, 0, {});
  EXPECT_EQ(drafted(drafter, {5, 5}, 3), (Tokens{5, 5, 5}));
}

TEST(NgramDrafter, GuessesCountAsIfTheSequenceHadThem) {
  NgramDrafter drafter(2, 2, 4);
  Tokens out(3);
  EXPECT_EQ(drafter.draft_behind(0, Tokens{1, 2, 3, 4, 9, 1}, Tokens{2}, out), 3u);
  EXPECT_EQ(out, (Tokens{3, 4, 9}));
  out.resize(5);
  EXPECT_EQ(drafter.draft_behind(1, Tokens{5, 6, 7, 5}, Tokens{6}, out), 5u);
  EXPECT_EQ(out, (Tokens{7, 5, 6, 7, 5})) << "a cycle goes on through the guess";
}

TEST(NgramDrafter, AnotherSequenceHasNothingOfTheOneBefore) {
  NgramDrafter drafter(1, 1, 2);
  EXPECT_EQ(drafted(drafter, {1, 2, 1}, 1), Tokens{2});
  drafter.start(0, 0, {});
  EXPECT_EQ(drafted(drafter, {3, 1}), Tokens{});
}

// What a call adds to the index is found as if all had been added at once, by the rule read off the text.
TEST(NgramDrafter, GrowingSequencesAreLookedUpAsTheRuleSays) {
  constexpr std::int32_t kShortest = 2, kLongest = 4;
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    NgramDrafter drafter(1, kShortest, kLongest);
    Tokens ids;
    for (int grown = 0; grown < 60; ++grown) {
      for (unsigned n = random() % 3; n > 0; --n) ids.push_back(static_cast<TokenId>(random() % 6));
      const auto size = static_cast<std::int32_t>(ids.size());
      std::int32_t best = kShortest - 1, from = -1;
      for (std::int32_t end = size - 1; end >= kShortest; --end) {
        std::int32_t common = 0;
        while (common < std::min(kLongest, end) && ids[static_cast<std::size_t>(end - 1 - common)] ==
                                                       ids[static_cast<std::size_t>(size - 1 - common)])
          ++common;
        if (common > best) best = common, from = end;
      }
      const Tokens expected = from < 0 ? Tokens{} : Tokens{ids[static_cast<std::size_t>(from)]};
      ASSERT_EQ(drafted(drafter, ids, 1), expected) << "round " << round << ", " << size << " tokens";
    }
  }
}

/// What it drafts behind the answer, and whether the tokens are the prediction's.
std::pair<Tokens, bool> predicted(PredictedDrafter& drafter, Tokens prompt, const Tokens& answer,
                                  std::size_t most = 3) {
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  Tokens out(most);
  const Drafts made = drafter.draft(0, prompt, out);
  out.resize(made.count);
  return {out, made.predicted};
}

class PredictedDrafterTest : public ::testing::Test {
 protected:
  const Tokens others{90, 91};
  const Tokens prompt{1, 2, 3};
  PredictedDrafter drafter{1, std::make_unique<test::OracleDrafter>(others)};
};

TEST_F(PredictedDrafterTest, FollowsThePredictionToItsEnd) {
  drafter.start(0, 3, Tokens{10, 11, 12, 13});
  EXPECT_EQ(predicted(drafter, prompt, {10}), std::pair(Tokens{11, 12, 13}, true));
  EXPECT_EQ(predicted(drafter, prompt, {10, 11, 12}), std::pair(Tokens{13}, true));
  EXPECT_EQ(predicted(drafter, prompt, {10, 11, 12, 13}), std::pair(others, false))
      << "nothing is left of it";
}

TEST_F(PredictedDrafterTest, AnAnswerThatLeavesItIsFoundAgainBehindTheChange) {
  drafter.start(0, 3, Tokens{10, 11, 12, 13, 14, 15, 16});
  EXPECT_EQ(predicted(drafter, prompt, {10, 99}), std::pair(others, false));
  EXPECT_EQ(predicted(drafter, prompt, {10, 99, 12, 13}), std::pair(others, false));
  EXPECT_EQ(predicted(drafter, prompt, {10, 99, 12, 13, 14}), std::pair(Tokens{15, 16}, true));
  EXPECT_EQ(predicted(drafter, prompt, {10, 99, 12, 13, 14, 10, 11, 12}), std::pair(Tokens{13, 14, 15}, true))
      << "also before the place where it was left";
}

TEST_F(PredictedDrafterTest, WithoutOneTheOtherDrafts) {
  drafter.start(0, 3, {});
  EXPECT_EQ(predicted(drafter, prompt, {10}), std::pair(others, false));
}

}  // namespace
}  // namespace troupe::model
