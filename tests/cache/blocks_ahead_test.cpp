// Blocks of prompts that another instance is still computing: copied as they are named, held until the prompt
// is handed over, and given up for sequences that need room.
#include "actors/cache/blocks_ahead.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "cache/instance.h"

namespace troupe {
namespace {

using test::Contents;
using test::Instance;
using test::make_table;

struct BlocksAheadTest : ::testing::Test {
  static constexpr std::int32_t kBlocks = 64;

  BlocksAheadTest() {
    prefill.cache.keep_names(names);
    prefill.start(kBlocks, 77);
    decode.cache.use_peers(PeerBlocks({names}));
    decode.start(kBlocks, 5);
  }
  static ExpectBlocks prompt(std::uint64_t k, const Contents& contents) {
    ExpectBlocks expected{Instance::key(k), {}};
    for (const std::uint64_t c : contents) expected.names.push_back({2, c});
    return expected;
  }
  void expect(std::uint64_t k, const Contents& contents, std::uint32_t front = 0) {
    decode.cache.expect(front, prompt(k, contents));
    copy_ahead();
  }
  void copy_ahead() {
    decode.cache.copy_ahead();
    for (std::size_t i = 0; i < decode.cache.commands(); ++i) {
      wire::RecordView view;
      ASSERT_TRUE(wire::RecordView::open(decode.cache.command(i), view));
      const auto* command = view.as<wire::CacheCommand>();
      const auto copies = view.array(command->copies);
      decode.commands.push_back({*command, {copies.begin(), copies.end()}});
    }
    ASSERT_TRUE(decode.cache.sound());
  }
  /// All copies that are under way are made and end.
  void copy_all() {
    while (!decode.commands.empty()) {
      decode.copy(prefill);
      decode.end();
    }
  }
  std::size_t copies() const {
    std::size_t all = 0;
    for (const SentCommand& command : decode.commands) all += command.copies.size();
    return all;
  }
  static Contents counted(std::uint64_t first, std::size_t count) {
    Contents out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(first + i);
    return out;
  }
  CacheStatus status() const { return decode.cache.status(); }

  std::shared_ptr<ipc::BlockNames> names = make_table();
  Instance prefill, decode;
};

TEST_F(BlocksAheadTest, BlocksAreCopiedAsTheyAreNamedAndTheRestAtTheHandOver) {
  prefill.admit(1, {11, 12, 13, 14});
  expect(1, {11, 12, 13, 14});
  EXPECT_TRUE(decode.commands.empty()) << "nothing has a name yet";
  EXPECT_TRUE(decode.cache.copies_ahead());
  prefill.compute(1, {11, 12}, 0);
  copy_ahead();
  ASSERT_EQ(copies(), 2u);
  EXPECT_EQ(status().moving, 2);
  prefill.compute(1, {11, 12, 13}, 2);
  copy_ahead();
  EXPECT_EQ(copies(), 3u) << "none is asked for twice";
  copy_all();
  EXPECT_EQ(status().leased, 3) << "they are held";
  EXPECT_EQ(decode.cache.copied_ahead(), 3);
  prefill.compute(1, {11, 12, 13, 14}, 3);

  const Grant grant = decode.admit(1, {11, 12, 13, 14}, 1);
  EXPECT_EQ(grant.cached, 4);
  EXPECT_EQ(copies(), 1u);
  EXPECT_FALSE(decode.cache.copies_ahead()) << "it has a lease of its own";
  copy_all();
  EXPECT_EQ(decode.held(1), (Contents{11, 12, 13, 14, 0}));
  decode.release(1);
  EXPECT_EQ(status().leased + status().moving, 0);
  EXPECT_EQ(status().cached, 4);
}

TEST_F(BlocksAheadTest, ALeaseWaitsForCopiesThatAreUnderWay) {
  prefill.leave(1, {11, 12});
  expect(1, {11, 12});
  EXPECT_EQ(copies(), 2u);
  const Grant grant = decode.admit(1, {11, 12});
  EXPECT_TRUE(grant.fetching);
  EXPECT_EQ(copies(), 2u) << "the same ones";
  copy_all();
  ASSERT_EQ(decode.update.fetched.size(), 1u);
  EXPECT_FALSE(decode.update.fetched[0].failed);
  EXPECT_EQ(decode.held(1), (Contents{11, 12}));
}

TEST_F(BlocksAheadTest, WhatIsHereAlreadyIsHeldAndNotCopied) {
  decode.leave(9, {11, 12});
  expect(1, {11, 12, 13});
  EXPECT_TRUE(decode.commands.empty());
  EXPECT_EQ(status().leased, 2);
  prefill.leave(1, {11, 12, 13});
  copy_ahead();
  EXPECT_EQ(copies(), 1u);
}

TEST_F(BlocksAheadTest, AtMostSoManyAreUnderWay) {
  prefill.leave(1, counted(100, 2 + BlocksAhead::kMostMoving));
  expect(1, counted(100, 2 + BlocksAhead::kMostMoving));
  EXPECT_EQ(copies(), BlocksAhead::kMostMoving);
  copy_all();
  copy_ahead();
  EXPECT_EQ(copies(), 2u);
}

TEST_F(BlocksAheadTest, SomeBlocksAreLeftForSequences) {
  decode.admit(9, {}, kBlocks - 2 - kBlocks / BlocksAhead::kKeptFree);
  prefill.leave(1, counted(100, 10));
  expect(1, counted(100, 10));
  EXPECT_EQ(copies(), 2u);
}

TEST_F(BlocksAheadTest, ASequenceThatNeedsRoomGetsWhatIsHeldForOthersTheLatestFirst) {
  prefill.leave(1, counted(100, 20));
  prefill.leave(2, counted(200, 20));
  expect(1, counted(100, 20));
  copy_all();
  expect(2, counted(200, 20));
  copy_all();
  EXPECT_EQ(status().leased, 40);
  EXPECT_FALSE(decode.admit(9, {}, kBlocks - 30).refused);
  EXPECT_EQ(status().leased, kBlocks - 30 + 20) << "the first prompt keeps its blocks";
  EXPECT_FALSE(decode.admit(1, counted(100, 20), 4).refused) << "its own are not given up for it";
  EXPECT_TRUE(decode.commands.empty());
  EXPECT_TRUE(decode.admit(10, {}, kBlocks).refused);
  ASSERT_TRUE(decode.cache.sound());
}

TEST_F(BlocksAheadTest, ABlockIsNotWrittenBeforeACopyThatWasGivenUpIsOver) {
  prefill.leave(1, {11});
  expect(1, {11});
  ASSERT_EQ(decode.commands.size(), 1u);
  decode.cache.forget(ForgetBlocks{{Instance::key(1)}});
  decode.admit(9, {}, kBlocks);
  EXPECT_EQ(decode.grants.last_command, decode.commands.front().header.id)
      << "plans that write the block wait for the copy";
  decode.copy(prefill);
  decode.end();
  decode.release(9);
  EXPECT_EQ(status().free, kBlocks);
}

TEST_F(BlocksAheadTest, WhatTheOtherUsesForSomethingElseMeanwhileIsNotFound) {
  prefill.leave(1, {11, 12});
  expect(1, {11, 12});
  decode.copy(prefill);
  prefill.leave(2, counted(100, kBlocks));  // takes every block
  decode.end();
  EXPECT_EQ(decode.update.status.peers, (PeerStatus{0, 2}));
  EXPECT_EQ(status().leased + status().moving, 0);
  EXPECT_EQ(decode.admit(1, {11, 12}).cached, 0);
  EXPECT_TRUE(decode.update.fetched.empty()) << "nobody waited";
}

TEST_F(BlocksAheadTest, APromptWhoseCopiesFailAgainAndAgainIsLeft) {
  prefill.leave(1, {11, 12});
  expect(1, {11, 12, 13});
  for (int i = 0; i < BlocksAhead::kMostFailures; ++i) {
    EXPECT_TRUE(decode.cache.copies_ahead()) << i;
    // Each time from another life of the memory: that of the last is left alone for a while.
    while (decode.commands.empty()) {
      prefill.start(kBlocks, 1000 + static_cast<std::uint64_t>(i));
      prefill.leave(1, {11, 12});
      copy_ahead();
      ASSERT_EQ(decode.commands.size(), 1u);
    }
    decode.end(false);
    EXPECT_EQ(status().leased + status().moving, 0);
  }
  EXPECT_FALSE(decode.cache.copies_ahead());
}

TEST_F(BlocksAheadTest, NothingIsHeldForAFrontThatIsGoneOrARequestThatHasEnded) {
  prefill.leave(1, {11, 12});
  prefill.leave(2, {21});
  expect(1, {11, 12}, 0);
  expect(2, {21}, 1);
  expect(3, {31}, 1);
  copy_all();
  EXPECT_EQ(status().leased, 3);
  decode.cache.forget_front(1);
  EXPECT_EQ(status().leased, 2);
  decode.cache.forget(ForgetBlocks{{Instance::key(8), Instance::key(1)}});
  EXPECT_EQ(status().leased, 0);
  EXPECT_EQ(status().cached, 3) << "what was copied may be found";
  EXPECT_FALSE(decode.cache.copies_ahead());
  ASSERT_TRUE(decode.cache.sound());
}

TEST_F(BlocksAheadTest, AResetOfTheCacheForgetsThem) {
  prefill.leave(1, {11, 12});
  expect(1, {11, 12, 13});
  EXPECT_EQ(decode.cache.reset_prefixes(), 2);
  EXPECT_FALSE(decode.cache.copies_ahead());
  copy_all();
  EXPECT_EQ(status().free, kBlocks);
}

TEST_F(BlocksAheadTest, ANewWorkerHasNothing) {
  prefill.leave(1, {11, 12});
  expect(1, {11, 12, 13});
  decode.start(kBlocks, 6);
  EXPECT_FALSE(decode.cache.copies_ahead());
  EXPECT_EQ(status().free, kBlocks);
}

/// Prompts are expected, computed, handed over, given up, and their instance ends, in any order.
TEST_F(BlocksAheadTest, NoSequenceEverBeginsWithOtherContentsAndEveryBlockIsCounted) {
  std::mt19937 random(11);
  const auto below = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
  };
  const auto chain = [&] { return counted(100 * (1 + below(6)), 1 + below(12)); };
  std::uint64_t next = 1, lives = 77;
  std::map<std::uint64_t, Contents> expected, waiting;  // waiting: with a lease that is being fetched
  std::map<std::uint64_t, std::int32_t> found;
  int whole = 0, lost = 0, ahead_ended = 0;
  bool copied = false;  // the copies of the oldest command are made
  const auto run_lease = [&](std::uint64_t k, const Contents& contents, std::int32_t cached) {
    const Contents held = decode.held(k);
    for (std::size_t i = 0; i < static_cast<std::size_t>(cached); ++i) ASSERT_EQ(held[i], contents[i]);
    decode.compute(k, contents, cached);
    decode.release(k);
    ++whole;
  };
  for (int round = 0; round < 30000; ++round) {
    const std::uint64_t what = below(16);
    if (what < 4) {
      prefill.leave(next++, chain());
    } else if (what == 4) {
      if (below(40) == 0) prefill.start(kBlocks, ++lives);
    } else if (what < 7) {
      if (expected.size() < 4) {
        const std::uint64_t k = next++;
        expected[k] = chain();
        expect(k, expected[k], static_cast<std::uint32_t>(below(2)));
      }
    } else if (what == 7 && !expected.empty()) {
      decode.cache.forget(ForgetBlocks{{Instance::key(expected.begin()->first)}});
      expected.erase(expected.begin());
      ++ahead_ended;
    } else if (what < 10 && !expected.empty()) {
      const auto [k, contents] = *expected.begin();
      const Grant grant = decode.admit(k, contents);
      if (grant.refused) continue;
      expected.erase(k);
      if (grant.fetching) {
        waiting[k] = contents;
        found[k] = grant.cached;
      } else {
        run_lease(k, contents, grant.cached);
      }
    } else if (what < 13) {
      copy_ahead();
    } else if (!decode.commands.empty() && !std::exchange(copied, true)) {
      decode.copy(prefill);  // and what is copied may change before it is looked at again
    } else if (!decode.commands.empty() && what == 15) {
      decode.end();
      copied = false;
      for (const FetchOutcome& outcome : decode.update.fetched) {
        const std::uint64_t k = outcome.key.lo;
        if (outcome.failed) {
          ++lost;
        } else {
          run_lease(k, waiting.at(k), found.at(k));
        }
        waiting.erase(k);
      }
    }
    ASSERT_TRUE(decode.cache.sound()) << "round " << round;
  }
  for (const auto& [k, contents] : expected) decode.cache.forget(ForgetBlocks{{Instance::key(k)}});
  while (!decode.commands.empty()) {
    decode.copy(prefill);
    decode.end();
    for (const FetchOutcome& outcome : decode.update.fetched)
      if (!outcome.failed) decode.release(outcome.key.lo);
  }
  EXPECT_EQ(status().leased + status().moving, 0) << "every block has been given back";
  EXPECT_GT(whole, 500);
  EXPECT_GT(lost, 5);
  EXPECT_GT(ahead_ended, 100);
  EXPECT_GT(decode.cache.copied_ahead(), 500);
}

}  // namespace
}  // namespace troupe
