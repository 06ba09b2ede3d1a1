#include "actors/tokenizer/text_jobs.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using Numbers = std::vector<std::uint64_t>;

class TextJobsTest : public ::testing::Test {
 protected:
  std::uint64_t add(TextLane lane = TextLane::common) { return jobs_.add({'j'}, lane); }
  /// Sends what is due, in the present epoch.
  Numbers send() {
    const Numbers due = jobs_.due();
    for (const std::uint64_t number : due) jobs_.sent(number, epoch_);
    return due;
  }
  Numbers die() { return jobs_.lost(++epoch_); }

  TextJobs jobs_;
  std::uint32_t epoch_ = 1;
};

TEST_F(TextJobsTest, JobsAreSentOnceInOrder) {
  const auto a = add(), b = add(TextLane::long_texts);
  EXPECT_EQ(send(), (Numbers{a, b}));
  EXPECT_EQ(send(), Numbers{});
  const auto c = add();
  EXPECT_EQ(send(), Numbers{c});
  EXPECT_TRUE(jobs_.answered(b));
  EXPECT_FALSE(jobs_.answered(b));
  EXPECT_EQ(jobs_.size(), 2u);
}

TEST_F(TextJobsTest, TheFirstOfALaneRunsAloneAfterADeath) {
  const auto a = add(), b = add(), c = add();
  send();
  EXPECT_EQ(die(), Numbers{});
  EXPECT_EQ(send(), Numbers{a});
  EXPECT_EQ(send(), Numbers{}) << "nothing runs beside it";
  const auto d = add();
  EXPECT_EQ(send(), Numbers{});
  EXPECT_TRUE(jobs_.answered(a));
  EXPECT_EQ(send(), (Numbers{b, c, d}));
}

TEST_F(TextJobsTest, EachLaneHasASuspect) {
  const auto a = add(), b = add(), c = add(TextLane::background), d = add(TextLane::background);
  send();
  die();
  EXPECT_EQ(send(), Numbers{a});
  EXPECT_TRUE(jobs_.answered(a));
  EXPECT_EQ(send(), Numbers{c}) << "the first of its lane was at work, too";
  EXPECT_TRUE(jobs_.answered(c));
  EXPECT_EQ(send(), (Numbers{b, d}));
}

TEST_F(TextJobsTest, ASecondDeathFailsTheJobAlone) {
  const auto a = add(), b = add();
  send();
  die();
  send();
  EXPECT_EQ(die(), Numbers{a});
  EXPECT_EQ(send(), Numbers{b});
  EXPECT_EQ(jobs_.size(), 1u);
  die();
  EXPECT_EQ(send(), Numbers{b}) << "its first death at work";
}

TEST_F(TextJobsTest, OfTwoSuspectsTheInnocentOneIsAnswered) {
  const auto innocent = add(), hostile = add(TextLane::long_texts);
  send();
  die();
  EXPECT_EQ(send(), Numbers{innocent});
  EXPECT_TRUE(jobs_.answered(innocent));
  EXPECT_EQ(send(), Numbers{hostile});
  EXPECT_EQ(die(), Numbers{hostile});

  const auto other = add(TextLane::long_texts), quiet = add();
  send();
  die();
  EXPECT_EQ(send(), Numbers{other});
  EXPECT_EQ(die(), Numbers{other});
  EXPECT_EQ(send(), Numbers{quiet}) << "it was not at work at the second death";
}

TEST_F(TextJobsTest, WhatWasSentToTheNextProcessIsNotLostWithTheOneBefore) {
  const auto a = add();
  send();
  const auto b = add();
  jobs_.sent(b, 2);  // the link was in the new epoch already
  EXPECT_EQ(die(), Numbers{});
  EXPECT_EQ(send(), Numbers{}) << "b is at work in the new process, and a has to run alone";
  EXPECT_TRUE(jobs_.answered(b));
  EXPECT_EQ(send(), Numbers{a});
}

TEST_F(TextJobsTest, AProcessThatDiesWithoutWorkIsNobodysFault) {
  EXPECT_EQ(die(), Numbers{});
  const auto a = add();
  EXPECT_EQ(send(), Numbers{a});
}

}  // namespace
}  // namespace troupe
