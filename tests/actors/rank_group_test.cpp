// Several ranks as one worker: their answers in any order, deaths at any point.
#include "actors/worker/rank_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "actors/record_bytes.h"
#include "actors/worker/step_digest.h"

namespace troupe {
namespace {

LinkUp link(std::uint32_t epoch, std::int32_t blocks = 100) {
  LinkUp up;
  up.epoch = epoch;
  up.capacity.kv_blocks = blocks;
  up.capacity.max_slots = blocks / 10;
  up.capacity.weight_bytes = 7;
  up.capacity.media_tokens = 3 * blocks;
  up.device = "cpu";
  return up;
}

Bytes result(std::uint32_t epoch, std::uint64_t step, TokenId token = 5) {
  wire::RecordWriter<wire::StepResult> writer;
  writer.begin(epoch);
  const auto tokens = writer.array(std::vector<TokenId>{token});
  const auto rows = writer.array(std::vector<wire::ResultRow>{{{1, 2}, 0, 1}});
  writer.record().step = step;
  writer.record().tokens = tokens;
  writer.record().rows = rows;
  return to_bytes(writer.finish());
}

Bytes end_of(const Bytes& result) {
  wire::RecordView view;
  EXPECT_TRUE(wire::RecordView::open(std::as_bytes(std::span(result)), view));
  wire::RecordWriter<wire::StepEnd> writer;
  writer.begin(view.header().epoch);
  writer.record().step = view.as<wire::StepResult>()->step;
  writer.record().digest = digest_of(view);
  return to_bytes(writer.finish());
}

Bytes answer(std::int32_t rank, std::uint32_t epoch, std::uint64_t step, TokenId token = 5) {
  Bytes whole = result(epoch, step, token);
  return rank == 0 ? whole : end_of(whole);
}

Bytes done(std::uint32_t epoch, std::uint64_t id, bool failed, std::int64_t from, std::int64_t to) {
  wire::RecordWriter<wire::CacheDone> writer;
  writer.begin(epoch);
  writer.record().id = id;
  writer.record().failed = failed ? 1 : 0;
  writer.record().started_ns = from;
  writer.record().finished_ns = to;
  return to_bytes(writer.finish());
}

template <class Record>
Record read(const Bytes& bytes) {
  wire::RecordView view;
  EXPECT_TRUE(wire::RecordView::open(std::as_bytes(std::span(bytes)), view));
  const auto* record = view.as<Record>();
  EXPECT_NE(record, nullptr);
  return record == nullptr ? Record{} : *record;
}

TEST(RankGroup, IsUpWhenAllAreAndHoldsWhatTheLeastHolds) {
  RankGroup group(3);
  EXPECT_FALSE(group.up(2, link(1, 50)).up);
  EXPECT_FALSE(group.up(0, link(1, 100)).up);
  const auto change = group.up(1, link(1, 70));
  ASSERT_TRUE(change.up);
  EXPECT_FALSE(change.down);
  EXPECT_EQ(change.up->epoch, 1u);
  EXPECT_EQ(change.up->capacity.kv_blocks, 50);
  EXPECT_EQ(change.up->capacity.max_slots, 5);
  EXPECT_EQ(change.up->capacity.weight_bytes, 21u);
  EXPECT_EQ(change.up->capacity.media_tokens, 150);
  EXPECT_TRUE(group.is_up());
}

TEST(RankGroup, ItsMemoryIsAnotherOneWhenThatOfAnyRankIs) {
  const auto together = [](std::uint64_t zero, std::uint64_t one, std::uint64_t two) {
    RankGroup group(3);
    LinkUp links[] = {link(1), link(1), link(1)};
    links[0].memory = zero;
    links[1].memory = one;
    links[2].memory = two;
    group.up(0, links[0]);
    group.up(2, links[2]);
    return group.up(1, links[1]).up->memory;
  };
  const std::uint64_t usual = together(11, 22, 33);
  EXPECT_NE(usual, 0u);
  EXPECT_EQ(together(11, 22, 33), usual);
  for (const std::uint64_t other : {together(12, 22, 33), together(11, 23, 33), together(11, 22, 35),
                                    together(22, 11, 33), together(11, 33, 22), together(33, 22, 11)}) {
    EXPECT_NE(other, usual);
  }
  EXPECT_EQ(together(11, 0, 33), 0u) << "a rank whose memory has no name";
  EXPECT_EQ(together(0, 22, 33), 0u);
  EXPECT_EQ(together(11, 22, 0), 0u);
}

TEST(RankGroup, RanksOfDifferentEpochsAreNoGroup) {
  RankGroup group(2);
  group.up(0, link(2));
  EXPECT_FALSE(group.up(1, link(1)).up);
  const auto change = group.up(1, link(2));
  ASSERT_TRUE(change.up);
  EXPECT_EQ(change.up->epoch, 2u);
}

Bytes encoded(std::uint32_t epoch, std::int32_t item, std::int64_t from, std::int64_t to, bool failed = false,
              bool dropped = false) {
  wire::RecordWriter<wire::MediaDone> writer;
  writer.begin(epoch);
  writer.record().slot = {3, 4};
  writer.record().item = item;
  writer.record().failed = failed ? 1 : 0;
  writer.record().dropped = dropped ? 1 : 0;
  writer.record().started_ns = from;
  writer.record().finished_ns = to;
  return to_bytes(writer.finish());
}

TEST(RankGroup, AnItemIsEncodedWhenAllHaveDoneIt) {
  RankGroup group(2);
  group.up(0, link(1));
  group.up(1, link(1));
  EXPECT_FALSE(group.media(1, encoded(1, 0, 5, 9)).record);
  EXPECT_FALSE(group.media(1, encoded(1, 1, 9, 12, true)).record) << "it is ahead";
  const auto first = group.media(0, encoded(1, 0, 7, 30));
  ASSERT_TRUE(first.record);
  const auto whole = read<wire::MediaDone>(*first.record);
  EXPECT_EQ(whole.header.epoch, 1u);
  EXPECT_EQ(whole.slot, (SlotRef{3, 4}));
  EXPECT_EQ(whole.item, 0);
  EXPECT_EQ(whole.started_ns, 5);
  EXPECT_EQ(whole.finished_ns, 30);
  EXPECT_EQ(whole.failed + whole.dropped, 0u);
  const auto second = group.media(0, encoded(1, 1, 30, 31));
  ASSERT_TRUE(second.record);
  EXPECT_EQ(read<wire::MediaDone>(*second.record).failed, 1u) << "on one is on all";
  group.media(0, encoded(1, 2, 1, 2));
  const auto third = group.media(1, encoded(1, 2, 1, 2, false, true));
  ASSERT_TRUE(third.record);
  EXPECT_EQ(read<wire::MediaDone>(*third.record).dropped, 1u);
  EXPECT_EQ(group.open_encodings(), 0u);

  group.media(0, encoded(1, 3, 1, 2));
  EXPECT_NE(group.media(0, encoded(1, 3, 1, 2)).fault.find("twice"), std::string::npos);
  EXPECT_FALSE(group.media(0, done(1, 1, false, 0, 1)).fault.empty()) << "no MediaDone";
  group.down(0, "killed");
  EXPECT_EQ(group.open_encodings(), 0u);
  EXPECT_FALSE(group.media(1, encoded(1, 3, 1, 2)).record) << "of an epoch that has passed";
}

TEST(RankGroup, OneLossIsOneLoss) {
  RankGroup group(2);
  group.up(0, link(1));
  group.up(1, link(1));
  EXPECT_TRUE(group.down(1, "killed").down);
  EXPECT_FALSE(group.down(0, "a new epoch").down);
  EXPECT_FALSE(group.up(0, link(2)).up);
  EXPECT_TRUE(group.up(1, link(2)).up);
}

TEST(RankGroup, RanksOfOtherBlocksDoNotFit) {
  RankGroup group(2);
  group.up(0, link(1));
  LinkUp other = link(1);
  other.capacity.block_tokens = 32;
  EXPECT_NE(group.up(1, other).fault, "");
}

class TwoRanks : public ::testing::Test {
 protected:
  TwoRanks() {
    group.up(0, link(1));
    group.up(1, link(1));
  }
  RankGroup group{2};
};

TEST_F(TwoRanks, AStepHasEndedWhenAllHaveAnsweredIt) {
  EXPECT_FALSE(group.step(0, answer(0, 1, 1)).record);
  EXPECT_FALSE(group.step(0, answer(0, 1, 2)).record);
  const auto first = group.step(1, answer(1, 1, 1));
  ASSERT_TRUE(first.record);
  EXPECT_EQ(*first.record, result(1, 1)) << "rank 0's";
  const auto second = group.step(1, answer(1, 1, 2));
  ASSERT_TRUE(second.record);
  EXPECT_EQ(read<wire::StepResult>(*second.record).step, 2u);
  EXPECT_EQ(group.open_steps(), 0u);
}

TEST_F(TwoRanks, OtherTokensAreAFault) {
  group.step(0, answer(0, 1, 1, 5));
  EXPECT_EQ(group.step(1, answer(1, 1, 1, 6)).fault, "rank 1 has sampled other tokens than rank 0 in step 1");
}

TEST_F(TwoRanks, AnswersThatNobodyAskedForAreFaults) {
  EXPECT_NE(group.step(0, answer(0, 1, 2)).fault, "") << "step 1 was left out";
  EXPECT_NE(group.step(0, answer(1, 1, 1)).fault, "") << "rank 0 must send a result";
  EXPECT_NE(group.step(1, answer(0, 1, 1)).fault, "") << "rank 1 must not";
  EXPECT_NE(group.step(2, answer(1, 1, 1)).fault, "");
  EXPECT_NE(group.step(-1, answer(1, 1, 1)).fault, "");
  EXPECT_NE(group.step(1, Bytes(8)).fault, "");
  EXPECT_EQ(group.step(0, answer(0, 1, 1)).fault, "");
  EXPECT_NE(group.step(0, answer(0, 1, 1)).fault, "") << "twice";
  EXPECT_NE(group.step(1, answer(1, 1, 2)).fault, "") << "step 1 was left out";
  EXPECT_NE(group.cache(1, answer(1, 1, 1)).fault, "");
  EXPECT_EQ(group.cache(1, done(1, 1, false, 0, 1)).fault, "");
  EXPECT_NE(group.cache(1, done(1, 1, false, 0, 1)).fault, "") << "twice";
}

TEST_F(TwoRanks, WhatAnEpochHasLeftBehindIsIgnored) {
  group.step(0, answer(0, 1, 1));
  group.cache(0, done(1, 1, false, 0, 1));
  group.down(1, "killed");
  EXPECT_FALSE(group.step(1, answer(1, 1, 1)).record);
  group.up(0, link(2));
  group.up(1, link(2));
  EXPECT_EQ(group.open_steps() + group.open_commands(), 0u);
  EXPECT_EQ(group.step(0, answer(0, 1, 7)).fault, "");
  EXPECT_FALSE(group.step(0, answer(0, 2, 1)).record);
  EXPECT_TRUE(group.step(1, answer(1, 2, 1)).record);
}

TEST_F(TwoRanks, ACommandHasFailedWhenItHasOnOne) {
  EXPECT_FALSE(group.cache(1, done(1, 2, true, 10, 20)).record);
  EXPECT_FALSE(group.cache(0, done(1, 1, false, 3, 4)).record);
  const auto second = group.cache(0, done(1, 2, false, 8, 15));
  ASSERT_TRUE(second.record);
  const auto merged = read<wire::CacheDone>(*second.record);
  EXPECT_EQ(merged.id, 2u);
  EXPECT_EQ(merged.failed, 1u);
  EXPECT_EQ(merged.started_ns, 8);
  EXPECT_EQ(merged.finished_ns, 20);
  EXPECT_EQ(merged.header.epoch, 1u);
  EXPECT_TRUE(group.cache(1, done(1, 1, false, 3, 4)).record);
}

// Ranks that answer in a random order and die at random points; the group is compared with a plain count.
TEST(RankGroup, RandomOrdersAndDeaths) {
  constexpr int kRanks = 4;
  std::mt19937 random(17);
  const auto one_of = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  RankGroup group(kRanks);
  std::uint32_t epoch = 0;
  std::vector<std::uint64_t> answered(kRanks);
  std::uint64_t planned = 0, ended = 0, steps = 0, deaths = 0;
  const auto begin_epoch = [&] {
    ++epoch;
    planned = ended = 0;
    answered.assign(kRanks, 0);
    int ups = 0;
    std::vector<int> order(kRanks);
    for (int r = 0; r < kRanks; ++r) order[static_cast<std::size_t>(r)] = r;
    std::shuffle(order.begin(), order.end(), random);
    int downs = 0;
    for (const int r : order) {
      if (epoch > 1) downs += group.down(r, "killed").down ? 1 : 0;
      const auto change = group.up(r, link(epoch));
      downs += change.down ? 1 : 0;
      ups += change.up ? 1 : 0;
      ASSERT_EQ(change.fault, "");
    }
    ASSERT_EQ(ups, 1);
    ASSERT_LE(downs, 1);
  };
  begin_epoch();
  while (steps < 100'000) {
    if (one_of(5000) == 0) {
      ++deaths;
      if (one_of(2) == 0) {
        const int dead = one_of(kRanks);
        ASSERT_TRUE(group.down(dead, "killed").down);
        // What the others had sent before is still on its way.
        ASSERT_FALSE(group.step((dead + 1) % kRanks, answer((dead + 1) % kRanks, epoch, ended + 1)).record);
      }
      begin_epoch();
      if (HasFatalFailure()) return;
      continue;
    }
    if (planned < ended + 2) ++planned;
    const int rank = one_of(kRanks);
    std::uint64_t& last = answered[static_cast<std::size_t>(rank)];
    if (last == planned) continue;
    const auto outcome = group.step(rank, answer(rank, epoch, ++last));
    ASSERT_EQ(outcome.fault, "");
    const std::uint64_t least = *std::min_element(answered.begin(), answered.end());
    ASSERT_EQ(outcome.record.has_value(), least == ended + 1);
    if (outcome.record) {
      ASSERT_EQ(read<wire::StepResult>(*outcome.record).step, ++ended);
      ++steps;
    }
    ASSERT_LE(group.open_steps(), 2u);
  }
  EXPECT_GT(deaths, 10u);
}

}  // namespace
}  // namespace troupe
