// What a new cache manager finds of an earlier one's blocks in the table of names, as a new engine does.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <unordered_map>

#include "actors/cache/cache_manager.h"

namespace troupe {
namespace {

constexpr std::uint64_t kMemory = 99;

struct KeptNamesTest : ::testing::Test {
  KeptNamesTest() { make_table(1000); }

  void make_table(std::uint64_t entries) {
    auto fd = ipc::BlockNames::create(entries);
    ASSERT_TRUE(fd.ok());
    auto attached = ipc::BlockNames::attach(fd->get());
    ASSERT_TRUE(attached.ok());
    names = std::make_shared<ipc::BlockNames>(*std::move(attached));
    next_engine();
  }
  /// The manager is thrown away, with all that it knows; the next one is told of the memory.
  void next_engine(std::uint64_t memory = kMemory) {
    cache = CacheManager();
    cache.keep_names(names);
    cache.reset(++epoch, blocks, 64, swap, memory);
  }
  static RequestKey key(std::uint64_t n) { return {1, n}; }
  static HashRange all(const std::vector<std::uint64_t>& contents) {
    return {0, static_cast<std::int32_t>(contents.size())};
  }
  CacheAsks asks(const std::vector<std::uint64_t>& contents = {}) const {
    CacheAsks made;
    made.epoch = epoch;
    made.prefill_tokens_per_s = 100;  // copies are worth it
    for (const std::uint64_t c : contents) made.hashes.push_back({1, c});
    return made;
  }
  Grant admit(std::uint64_t k, std::int32_t wanted, const std::vector<std::uint64_t>& contents = {}) {
    CacheAsks made = asks(contents);
    made.grows = {{key(k), wanted, 0, all(contents)}};
    cache.answer(made, grants);
    return grants.grants.at(0);
  }
  void publish(std::uint64_t k, const std::vector<std::uint64_t>& contents) {
    CacheAsks made = asks(contents);
    made.publishes = {{key(k), 0, all(contents)}};
    cache.answer(made, grants);
  }
  void release(std::uint64_t k, bool withdraws = false) {
    CacheAsks made = asks();
    made.releases = {key(k)};
    if (withdraws) made.withdrawals = {key(k)};
    cache.answer(made, grants);
  }
  /// A lease with these contents that ends at once.
  void leave(std::uint64_t k, const std::vector<std::uint64_t>& contents) {
    admit(k, static_cast<std::int32_t>(contents.size()));
    publish(k, contents);
    release(k);
  }
  std::vector<BlockId> table(std::uint64_t k) const {
    return {cache.table(key(k)).begin(), cache.table(key(k)).end()};
  }
  bool named(BlockId block) const {
    ipc::BlockName name;
    return names->read(block, name);
  }
  void expect_counts(std::int32_t free, std::int32_t cached, std::int32_t leased, std::int32_t moving = 0) {
    const CacheStatus s = cache.status();
    EXPECT_EQ(s.free, free);
    EXPECT_EQ(s.cached, cached);
    EXPECT_EQ(s.leased, leased);
    EXPECT_EQ(s.moving, moving);
    EXPECT_TRUE(cache.sound());
  }
  bool end(std::uint64_t command, bool failed) {
    wire::CacheDone record;
    record.header = {wire::RecordKind::cache_done, sizeof record, epoch, 0};
    record.id = command;
    record.failed = failed ? 1 : 0;
    record.finished_ns = 1000;
    CacheGrants update;
    return cache.done(record, update);
  }

  std::int32_t blocks = 10;
  SwapShape swap;
  std::uint32_t epoch = 0;
  std::shared_ptr<ipc::BlockNames> names;
  CacheManager cache;
  CacheGrants grants;
};

TEST_F(KeptNamesTest, ANewManagerFindsWhatWasPublishedHeldOrNot) {
  admit(1, 4);
  publish(1, {11, 12, 13});
  leave(2, {21, 22});
  const std::vector<BlockId> held = table(1);
  next_engine();
  expect_counts(5, 5, 0);
  EXPECT_EQ(admit(3, 4, {11, 12, 13, 14}).cached, 3);
  EXPECT_EQ(table(3)[2], held[2]);
  EXPECT_EQ(admit(4, 2, {21, 22}).cached, 2);
  expect_counts(4, 0, 6);
  next_engine();
  EXPECT_EQ(admit(5, 3, {11, 12, 13}).cached, 3) << "and the one after it";
}

TEST_F(KeptNamesTest, NothingIsFoundInAnotherMemoryOrOneWithoutAName) {
  for (const std::uint64_t other : {std::uint64_t{100}, std::uint64_t{0}}) {
    next_engine();
    leave(1, {11, 12});
    const BlockId end = names->end();
    next_engine(other);
    expect_counts(10, 0, 0);
    EXPECT_EQ(names->memory(), other);
    for (BlockId block = 0; block < end; ++block) EXPECT_FALSE(named(block));
    next_engine();
    expect_counts(10, 0, 0);
  }
}

TEST_F(KeptNamesTest, WithoutAMemoryNameTheTableIsNeverTrusted) {
  next_engine(0);
  leave(1, {11});
  next_engine(0);
  expect_counts(10, 0, 0);
}

TEST_F(KeptNamesTest, ABlockThatIsGrantedHasNoName) {
  leave(1, {1, 2, 3, 4, 5, 6, 7, 8});
  admit(2, 5);  // both free ones, and three that are evicted
  for (const BlockId block : table(2)) EXPECT_FALSE(named(block)) << block;
  next_engine();
  expect_counts(5, 5, 0);
  EXPECT_EQ(admit(3, 8, {1, 2, 3, 4, 5, 6, 7, 8}).cached, 5);
}

TEST_F(KeptNamesTest, WhatIsWithdrawnOrForgottenHasNoName) {
  admit(1, 2);
  publish(1, {11, 12});
  release(1, true);
  leave(2, {21});
  admit(3, 1);
  publish(3, {31});
  cache.reset_prefixes();
  next_engine();
  expect_counts(10, 0, 0);
}

TEST_F(KeptNamesTest, OfEqualBlocksOneIsFoundAgain) {
  admit(1, 1);
  admit(2, 1);
  publish(1, {7});
  publish(2, {7});
  next_engine();
  expect_counts(9, 1, 0);
  next_engine();
  expect_counts(9, 1, 0);
}

TEST_F(KeptNamesTest, APrefixFoundAgainLosesItsEndFirst) {
  leave(1, {11, 12, 13, 14, 15, 16});
  next_engine();
  admit(2, 7);  // four free ones, and three that are evicted
  EXPECT_EQ(admit(3, 3, {11, 12, 13, 14, 15, 16}).cached, 3);
}

TEST_F(KeptNamesTest, ASmallerPoolOrASmallerTableFindsLess) {
  admit(1, 10);
  publish(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  blocks = 4;
  next_engine();
  expect_counts(0, 4, 0);
  blocks = 10;
  next_engine();
  expect_counts(6, 4, 0);

  make_table(3);
  admit(1, 10);
  publish(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  next_engine();
  expect_counts(7, 3, 0);
}

TEST_F(KeptNamesTest, ABlockThatIsCopiedInHasItsNameWhenTheCopyHasEndedWell) {
  blocks = 4;
  swap = {8, 1000};
  next_engine();
  leave(1, {1, 2, 3, 4});
  for (std::uint64_t id = 1; id <= 8; ++id) static_cast<void>(end(id, false));
  leave(2, {21, 22, 23, 24});  // evicts all, which the swap space has
  for (std::uint64_t id = 1; id <= 16; ++id) static_cast<void>(end(id, false));
  for (const bool failed : {true, false}) {
    ASSERT_TRUE(admit(3, 1, {1}).fetching);
    const BlockId block = cache.table(key(3))[0];
    EXPECT_FALSE(named(block));
    std::uint64_t id = 0;
    for (std::size_t i = 0; i < cache.commands(); ++i) {
      wire::RecordView view;
      ASSERT_TRUE(wire::RecordView::open(cache.command(i), view));
      const auto* command = view.as<wire::CacheCommand>();
      if (command->op == wire::CacheOp::swap_in) id = command->id;
    }
    ASSERT_NE(id, 0u);
    ASSERT_TRUE(end(id, failed));
    EXPECT_EQ(named(block), !failed);
    if (!failed) break;
    leave(4, {1, 2, 3, 4});  // the failure has forgotten it
    for (std::uint64_t c = 1; c <= 64; ++c) static_cast<void>(end(c, false));
    leave(5, {21, 22, 23, 24});
    for (std::uint64_t c = 1; c <= 64; ++c) static_cast<void>(end(c, false));
  }
}

TEST_F(KeptNamesTest, UnderRandomOperationsAndDeathsWhatIsFoundIsWhatItsNameSays) {
  std::mt19937 random(11);
  blocks = 40;
  make_table(1000);
  std::vector<std::uint64_t> written(40);  // by block: what its last writer put there, or is about to
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> texts;  // of live leases
  std::uint64_t next = 0;
  std::int64_t found_again = 0, deaths = 0;
  for (int i = 0; i < 100'000; ++i) {
    const int what = static_cast<int>(random() % 8);
    if (what < 3) {
      const std::uint64_t text = random() % 12;
      const std::size_t length = 1 + random() % 8;
      std::vector<std::uint64_t> contents;
      for (std::uint64_t b = 0; b < length; ++b) contents.push_back(b < 2 ? 100 + b : text * 1000 + b + 1);
      const Grant grant = admit(++next, static_cast<std::int32_t>(length), contents);
      if (grant.refused) continue;
      const std::vector<BlockId> lease = table(next);
      for (std::size_t b = 0; b < length; ++b) {
        std::uint64_t& holds = written[static_cast<std::size_t>(lease[b])];
        if (static_cast<std::int32_t>(b) < grant.cached) {
          ASSERT_EQ(holds, contents[b]) << "at operation " << i;
        } else {
          ASSERT_FALSE(named(lease[b])) << "a plan may write it; at operation " << i;
          holds = contents[b];
        }
      }
      texts[next] = contents;
    } else if (!texts.empty()) {
      const std::uint64_t some =
          std::next(texts.begin(), static_cast<std::ptrdiff_t>(random() % texts.size()))->first;
      if (what < 5) {
        const std::size_t n = 1 + random() % texts[some].size();
        publish(some, {texts[some].begin(), texts[some].begin() + static_cast<std::ptrdiff_t>(n)});
      } else {
        release(some, what == 7);
        texts.erase(some);
      }
    }
    if (random() % 3000 == 0) cache.reset_prefixes();
    if (random() % 200 != 0) continue;
    ++deaths;
    const bool idle = random() % 2 == 0;
    if (idle) {
      for (const auto& [k, text] : texts) release(k);
    }
    const std::int32_t before = cache.status().cached;
    next_engine();
    texts.clear();
    const CacheStatus s = cache.status();
    ASSERT_TRUE(cache.sound());
    ASSERT_EQ(s.free + s.cached, 40);
    if (idle) {
      ASSERT_EQ(s.cached, before) << "all that could be found";
    }
    found_again += s.cached;
    ipc::BlockName name;
    for (BlockId block = 0; block < names->end(); ++block) {
      if (names->read(block, name)) {
        ASSERT_EQ(name.hash.lo, written[static_cast<std::size_t>(block)]);
      }
    }
  }
  EXPECT_GT(deaths, 100);
  EXPECT_GT(found_again, 5 * deaths);
}

}  // namespace
}  // namespace troupe
