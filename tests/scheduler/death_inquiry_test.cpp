// Which sequences are suspected of killing workers.
#include "actors/scheduler/death_inquiry.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

struct Inquiry : ::testing::Test {
  std::uint32_t add(std::uint64_t key) {
    const std::uint32_t at = table.create({1, key});
    inquiry.begin(table[at], false);
    table[at].state = SequenceState::running;
    return at;
  }
  /// The worker dies while these run, and all are tried again.
  void die() {
    inquiry.worker_lost(table);
    for (std::uint32_t i = 0; i < table.places(); ++i) {
      inquiry.tried_again(table[i]);
      table[i].proven = false;
    }
  }
  ScheduledSequences table;
  DeathInquiry inquiry;
};

TEST_F(Inquiry, OneThatHadNoPlanInFlightIsNoSuspect) {
  const std::uint32_t a = add(1);
  die();
  EXPECT_FALSE(is_suspect(table[a]));
  EXPECT_EQ(inquiry.isolated(table), kNoSequence);
}

TEST_F(Inquiry, OneThatHadYieldedATokenIsIsolatedAtTheSecondDeath) {
  const std::uint32_t a = add(1);
  inquiry.yielded(table[a]);
  table[a].plans_out = 1;
  die();
  EXPECT_TRUE(is_suspect(table[a]));
  EXPECT_EQ(inquiry.isolated(table), kNoSequence);
  table[a].proven = true;
  die();
  EXPECT_EQ(inquiry.isolated(table), a);
  inquiry.yielded(table[a]);
  EXPECT_FALSE(is_suspect(table[a]));
  EXPECT_EQ(inquiry.isolated(table), kNoSequence);
}

TEST_F(Inquiry, OnlyOneThatWasAloneInFlightIsProven) {
  const std::uint32_t a = add(1), b = add(2);
  table[a].plans_out = table[b].plans_out = 1;
  die();
  inquiry.worker_lost(table);
  EXPECT_FALSE(inquiry.proves(table[a]));
  table[b].plans_out = 0;
  inquiry.worker_lost(table);
  EXPECT_TRUE(inquiry.proves(table[a]));
  EXPECT_FALSE(inquiry.proves(table[b]));
}

TEST_F(Inquiry, OneThatKillsAfterAFewTokensEachTimeIsIsolatedInTheEnd) {
  const std::uint32_t a = add(1);
  table[a].plans_out = 1;
  for (int k = 1; k <= DeathInquiry::kMaxShortLives; ++k) {
    EXPECT_EQ(inquiry.isolated(table), kNoSequence) << k;
    inquiry.yielded(table[a]);
    die();
  }
  EXPECT_EQ(inquiry.isolated(table), a);
  for (int k = 1; k < DeathInquiry::kForgivingTokens; ++k) inquiry.yielded(table[a]);
  EXPECT_EQ(inquiry.isolated(table), a);
  inquiry.yielded(table[a]);
  EXPECT_EQ(inquiry.isolated(table), kNoSequence);
}

TEST_F(Inquiry, OneThatIsHeldLetsOthersRunOnceItsPlansHaveComeBack) {
  const std::uint32_t a = add(1);
  inquiry.begin(table[a], true);
  table[a].held = true;
  table[a].plans_out = 1;
  EXPECT_EQ(inquiry.isolated(table), a);
  table[a].plans_out = 0;
  EXPECT_EQ(inquiry.isolated(table), kNoSequence);
  table[a].held = false;
  EXPECT_EQ(inquiry.isolated(table), a);
}

}  // namespace
}  // namespace troupe
