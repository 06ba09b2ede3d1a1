// The cache manager with a swap space: what is copied there and back, and in which order.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <unordered_map>

#include "actors/cache/cache_manager.h"
#include "cache/sent_commands.h"

namespace troupe {
namespace {

BlockHash named(std::uint64_t contents) { return {2, contents}; }

constexpr std::uint64_t kBlockBytes = 1'000'000;

struct SwapTest : ::testing::Test {
  SwapTest() { reset(8, 8); }

  void reset(std::int32_t blocks, std::int32_t swap) {
    cache.reset(++epoch, blocks, 64, {swap, kBlockBytes});
    commands.clear();
  }
  static RequestKey key(std::uint64_t n) { return {1, n}; }
  void answer(const CacheAsks& asks) { answer_asks(cache, asks, grants, commands); }
  CacheAsks asks() const {
    CacheAsks made;
    made.epoch = epoch;
    made.prefill_tokens_per_s = prefill;
    return made;
  }
  Grant admit(std::uint64_t k, std::int32_t blocks, const std::vector<std::uint64_t>& contents = {}) {
    CacheAsks made = asks();
    for (std::uint64_t c : contents) made.hashes.push_back(named(c));
    made.grows = {{key(k), blocks, 0, {0, static_cast<std::int32_t>(contents.size())}}};
    answer(made);
    return grants.grants.at(0);
  }
  void publish(std::uint64_t k, const std::vector<std::uint64_t>& contents) {
    CacheAsks made = asks();
    for (std::uint64_t c : contents) made.hashes.push_back(named(c));
    made.publishes = {{key(k), 0, {0, static_cast<std::int32_t>(contents.size())}}};
    answer(made);
  }
  void release(std::uint64_t k) {
    CacheAsks made = asks();
    made.releases = {key(k)};
    answer(made);
  }
  /// A lease with these contents that ends at once.
  void leave(std::uint64_t k, const std::vector<std::uint64_t>& contents) {
    admit(k, static_cast<std::int32_t>(contents.size()));
    publish(k, contents);
    release(k);
  }
  /// Ends the oldest command, or the one with this id. `seconds`: what it took.
  bool end(bool ok = true, double seconds = 0, std::uint64_t id = 0) {
    const wire::CacheDone record =
        command_done(epoch, id != 0 ? id : commands.front().header.id, ok, seconds);
    std::erase_if(commands, [&](const SentCommand& c) { return c.header.id == record.id; });
    const bool fine = cache.done(record, update);
    EXPECT_TRUE(cache.sound());
    return fine;
  }
  void end_all() {
    while (!commands.empty()) ASSERT_TRUE(end());
  }
  std::vector<BlockId> table(std::uint64_t k) const {
    return {cache.table(key(k)).begin(), cache.table(key(k)).end()};
  }

  CacheManager cache;
  CacheGrants grants, update;
  std::deque<SentCommand> commands;
  std::uint32_t epoch = 0;
  double prefill = 0;
};

TEST_F(SwapTest, EvictedContentsComeBackAndTheirSequenceWaits) {
  leave(1, {11, 12, 13, 14});
  admit(2, 8);  // four free ones, then the cached ones: their contents are copied out first
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].header.op, wire::CacheOp::swap_out);
  EXPECT_EQ(commands[0].copies.size(), 4u);
  EXPECT_EQ(commands[0].header.after, 0u);
  EXPECT_EQ(grants.last_command, commands[0].header.id) << "the blocks are written after they were read";
  EXPECT_EQ(cache.status().swap.moving, 4);
  release(2);
  EXPECT_EQ(admit(3, 4, {11, 12}).cached, 0) << "the copies have not ended";
  release(3);
  end_all();
  EXPECT_EQ(cache.status().swap.cached, 4);
  EXPECT_EQ(cache.status().swap.out, 4);

  const Grant grant = admit(4, 5, {11, 12, 13, 14});
  EXPECT_EQ(grant.cached, 4);
  EXPECT_EQ(grant.swapped, 4);
  EXPECT_TRUE(grant.fetching);
  EXPECT_EQ(cache.status().moving, 4);
  EXPECT_EQ(cache.status().swap.moving, 4);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].header.op, wire::CacheOp::swap_in);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(commands[0].copies[i].to, table(4)[i]);
  ASSERT_TRUE(end());
  ASSERT_EQ(update.fetched.size(), 1u);
  EXPECT_EQ(update.fetched[0].key, key(4));
  EXPECT_FALSE(update.fetched[0].failed);
  EXPECT_EQ(cache.status().moving, 0);
  EXPECT_EQ(cache.status().swap.in, 4);
  EXPECT_EQ(cache.status().swap.cached, 4) << "they stay there, too";
}

TEST_F(SwapTest, ASecondPromptWaitsForTheSameCopy) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  release(2);
  EXPECT_TRUE(admit(3, 3, {11, 12}).fetching);
  const Grant second = admit(4, 3, {11, 12});
  EXPECT_EQ(second.cached, 2);
  EXPECT_EQ(second.swapped, 0);
  EXPECT_TRUE(second.fetching);
  EXPECT_EQ(commands.size(), 1u);
  EXPECT_EQ(table(3)[0], table(4)[0]);
  ASSERT_TRUE(end());
  EXPECT_EQ(update.fetched.size(), 2u);
  EXPECT_FALSE(admit(5, 2, {11, 12}).fetching);
}

TEST_F(SwapTest, AFailedCopyEndsTheLeasesThatWaitForItAndForgetsTheContents) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  release(2);
  admit(3, 3, {11, 12});
  admit(4, 3, {11, 12});
  ASSERT_TRUE(end(false));
  ASSERT_EQ(update.fetched.size(), 2u);
  EXPECT_TRUE(update.fetched[0].failed && update.fetched[1].failed);
  EXPECT_EQ(cache.leases(), 0u);
  EXPECT_EQ(cache.status().free, 8);
  EXPECT_EQ(cache.status().swap.free, 8);
  EXPECT_EQ(cache.status().swap.failed, 2);
  EXPECT_EQ(admit(3, 3, {11, 12}).cached, 0);
}

TEST_F(SwapTest, AFailedCopyOutIsAsIfThereHadBeenNone) {
  leave(1, {11, 12});
  admit(2, 8);
  ASSERT_TRUE(end(false));
  release(2);
  EXPECT_EQ(admit(3, 2, {11, 12}).cached, 0);
  EXPECT_EQ(cache.status().swap.free, 8);
}

TEST_F(SwapTest, CopiesToABlockWaitForTheCopyThatReadsIt) {
  leave(1, {11});
  admit(2, 8);
  ASSERT_TRUE(end());
  release(2);  // 11 is in the swap space only
  leave(3, {21, 22, 23, 24, 25, 26, 27, 28});
  ASSERT_FALSE(commands.empty());  // some are saved ahead
  const std::size_t before = commands.size();
  admit(4, 3, {11});
  ASSERT_EQ(commands.size(), before + 2);
  const SentCommand& out = commands[before];
  const SentCommand& in = commands[before + 1];
  EXPECT_EQ(out.header.op, wire::CacheOp::swap_out);
  EXPECT_EQ(in.header.op, wire::CacheOp::swap_in);
  EXPECT_LT(in.header.after, in.header.id);
  EXPECT_GT(in.header.after, 0u);
  EXPECT_LE(grants.last_command, out.header.id) << "plans wait for the copies out, not for the fetch";
  EXPECT_GT(grants.last_command, 0u);
}

TEST_F(SwapTest, BlocksOfNextEvictionsAreSavedAheadSoThatTakingThemWaitsForNothing) {
  reset(64, 64);
  std::vector<std::uint64_t> contents;
  for (std::uint64_t c = 1; c <= 64; ++c) contents.push_back(c);
  leave(1, contents);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands[0].copies.size(), 8u) << "an eighth of the blocks";
  end_all();
  EXPECT_EQ(cache.status().cached, 64) << "they can still be found";
  admit(2, 8);
  EXPECT_EQ(grants.last_command, 0u);
  EXPECT_EQ(commands.size(), 1u) << "the next eight";
}

TEST_F(SwapTest, CopiesMayEndInAnyOrder) {
  leave(1, {11, 12});
  leave(2, {21, 22});
  admit(3, 8);
  end_all();
  release(3);
  admit(4, 2, {11, 12});
  admit(5, 2, {21, 22});
  ASSERT_EQ(commands.size(), 2u);
  const std::uint64_t first = commands[0].header.id, second = commands[1].header.id;
  ASSERT_TRUE(end(true, 0, second));
  ASSERT_EQ(update.fetched.size(), 1u);
  EXPECT_EQ(update.fetched[0].key, key(5));
  EXPECT_FALSE(end(true, 0, second)) << "it has ended already";
  ASSERT_TRUE(end(true, 0, first));
  EXPECT_EQ(update.fetched.at(0).key, key(4));
}

TEST_F(SwapTest, AReleasedFetchLeavesItsBlocksToTheCommand) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  release(2);
  admit(3, 2, {11, 12});
  const std::uint64_t fetch = commands.front().header.id;
  release(3);
  EXPECT_EQ(cache.status().moving, 0);
  const Grant again = admit(4, 2, {11, 12});
  EXPECT_TRUE(again.fetching) << "found in the KV memory, still on their way";
  EXPECT_EQ(again.swapped, 0);
  release(4);
  admit(5, 8);  // takes them for something else
  EXPECT_EQ(grants.last_command, fetch);
  ASSERT_TRUE(end());
  EXPECT_TRUE(update.fetched.empty());
  EXPECT_EQ(cache.status().leased, 8);
}

TEST_F(SwapTest, AResetForgetsTheSwapSpaceAndWhatIsOnItsWay) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  release(2);
  admit(3, 2, {11, 12});
  cache.reset_prefixes();
  ASSERT_TRUE(end());
  ASSERT_EQ(update.fetched.size(), 1u);
  EXPECT_TRUE(update.fetched[0].failed);
  EXPECT_EQ(cache.status().swap.free, 8);
  EXPECT_EQ(admit(3, 2, {11, 12}).cached, 0);
}

TEST_F(SwapTest, WithdrawnContentsAreForgottenInTheSwapSpaceToo) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  release(2);
  admit(3, 2, {11, 12});
  end_all();
  CacheAsks made = asks();
  made.withdrawals = {key(3)};
  made.releases = {key(3)};
  answer(made);
  EXPECT_EQ(admit(4, 2, {11, 12}).cached, 0);
}

TEST_F(SwapTest, ANewEpochKnowsNothing) {
  leave(1, {11, 12});
  admit(2, 8);
  end_all();
  reset(8, 8);
  EXPECT_EQ(admit(1, 2, {11, 12}).cached, 0);
  EXPECT_EQ(cache.status().swap.out, 0);
  EXPECT_EQ(cache.status().swap.free, 8);
}

TEST_F(SwapTest, WhatIsComputedFasterIsNotCopied) {
  leave(1, {11, 12});
  admit(2, 8);
  ASSERT_TRUE(end(true, 0.002));  // 1 GB/s
  release(2);
  prefill = 1e9;  // 64 tokens in 64 ns
  EXPECT_EQ(admit(3, 3, {11, 12}).cached, 2) << "the way back is not known yet";
  ASSERT_TRUE(end(true, 0.002));
  release(3);
  admit(2, 8);
  EXPECT_TRUE(commands.empty()) << "they are in the swap space already";
  release(2);
  EXPECT_EQ(admit(3, 3, {11, 12}).cached, 0);
  EXPECT_EQ(cache.status().swap.declined, 2);
  release(3);
  prefill = 1000;  // 64 ms
  EXPECT_EQ(admit(3, 3, {11, 12}).cached, 2);
  end_all();
  release(3);

  prefill = 1e9;
  std::uint64_t next = 100;
  std::size_t saved = 0;
  for (int i = 0; i < 300 && saved == 0; ++i) {
    leave(next, {next, next + 1, next + 2, next + 3, next + 4, next + 5, next + 6, next + 7});
    next += 10;
    saved += commands.size();
  }
  EXPECT_GT(saved, 0u) << "the speeds are measured again from time to time";
  EXPECT_GT(cache.status().swap.declined, 200);
}

// Random operations, with a memory that executes the commands in any order that they allow, at any time.
TEST_F(SwapTest, ContentsAreWhatTheirNamesSayUnderRandomOperations) {
  std::mt19937 random(7);
  std::vector<std::uint64_t> kv, swap;                                  // contents of each block
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> texts;  // of live leases
  std::map<std::uint64_t, std::int32_t> fetching;                       // lease → blocks it found
  std::map<std::uint64_t, bool> open;                                   // commands not run
  std::uint64_t next = 0;
  std::int64_t fetched = 0, failed = 0, moves = 0;
  const auto begin = [&] {
    const std::int32_t blocks = 24 + static_cast<std::int32_t>(random() % 20);
    const std::int32_t more = 1 + static_cast<std::int32_t>(random() % 80);
    reset(blocks, more);
    kv.assign(static_cast<std::size_t>(blocks), 0);
    swap.assign(static_cast<std::size_t>(more), 0);
    texts.clear();
    fetching.clear();
    open.clear();
  };
  const auto run = [&](std::size_t at, bool ok) {  // one command's copies, then its report
    const SentCommand command = commands[at];
    for (const wire::BlockCopy& copy : command.copies) {
      const auto from = static_cast<std::size_t>(copy.from), to = static_cast<std::size_t>(copy.to);
      switch (command.header.op) {
        case wire::CacheOp::copy_blocks: kv[to] = kv[from]; break;
        case wire::CacheOp::swap_out: swap[to] = ok ? kv[from] : 666; break;
        case wire::CacheOp::swap_in: kv[to] = ok ? swap[from] : 667; break;
        case wire::CacheOp::peer_in: FAIL() << "there are no other instances";
      }
      ++moves;
    }
    open.erase(command.header.id);
    ASSERT_TRUE(end(ok, 0.001, command.header.id));
    for (const FetchOutcome& outcome : update.fetched) {
      const std::uint64_t lease = outcome.key.lo;
      const auto found = fetching.find(lease);
      ASSERT_NE(found, fetching.end());
      if (outcome.failed) {
        ++failed;
        texts.erase(lease);
      } else {
        ++fetched;
        for (std::size_t b = 0; b < static_cast<std::size_t>(found->second); ++b) {
          ASSERT_EQ(kv[static_cast<std::size_t>(table(lease)[b])], texts[lease][b]);
        }
      }
      fetching.erase(found);
    }
  };
  const auto runnable = [&](const SentCommand& command) {
    return open.empty() || open.begin()->first > command.header.after ||
           open.begin()->first == command.header.id;
  };
  begin();
  for (int i = 0; i < 1'000'000; ++i) {
    const std::size_t known = commands.size();
    const unsigned what = random() % 16;
    if (what < 4) {
      const std::uint64_t text = random() % 30;
      std::vector<std::uint64_t> contents;
      const std::uint64_t blocks = 1 + random() % 10;
      for (std::uint64_t b = 0; b < blocks; ++b) {
        contents.push_back(b < 2 ? 100 + b : text * 1000 + b + 1);
      }
      const Grant grant = admit(++next, static_cast<std::int32_t>(blocks), contents);
      if (!grant.refused) {
        texts[next] = contents;
        if (grant.fetching) fetching[next] = grant.cached;
        // A plan writes the rest, after the commands that the grant names.
        const std::uint64_t after = grants.last_command;
        for (std::size_t c = known; c < commands.size(); ++c) open[commands[c].header.id] = true;
        while (!open.empty() && open.begin()->first <= after) {
          const auto first = std::find_if(commands.begin(), commands.end(), [&](const SentCommand& c) {
            return c.header.id == open.begin()->first;
          });
          ASSERT_NO_FATAL_FAILURE(run(static_cast<std::size_t>(first - commands.begin()), true));
        }
        if (texts.contains(next)) {
          for (std::size_t b = static_cast<std::size_t>(grant.cached); b < contents.size(); ++b) {
            kv[static_cast<std::size_t>(table(next)[b])] = contents[b];
          }
        }
        if (!grant.fetching) {
          for (std::size_t b = 0; b < static_cast<std::size_t>(grant.cached); ++b) {
            ASSERT_EQ(kv[static_cast<std::size_t>(table(next)[b])], contents[b]) << "at operation " << i;
          }
        }
      }
    } else if (what < 10 && !texts.empty()) {
      const std::uint64_t some = std::next(texts.begin(), random() % texts.size())->first;
      if (what < 7 && !fetching.contains(some)) publish(some, texts[some]);
      if (what >= 7) {
        release(some);
        texts.erase(some);
        fetching.erase(some);
      }
    } else if (!commands.empty()) {
      const std::size_t at = random() % commands.size();
      if (runnable(commands[at])) {
        ASSERT_NO_FATAL_FAILURE(run(at, random() % 50 != 0)) << "at operation " << i;
      }
    }
    for (const SentCommand& command : commands) open[command.header.id] = true;
    if (random() % 20'000 == 0) cache.reset_prefixes();
    if (random() % 50'000 == 0) begin();  // a worker died, or the engine was attached again
  }
  EXPECT_GT(fetched, 10'000);
  EXPECT_GT(failed, 100);
  EXPECT_GT(moves, 100'000);
}

}  // namespace
}  // namespace troupe
