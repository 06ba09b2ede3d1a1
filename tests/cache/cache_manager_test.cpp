#include "actors/cache/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace troupe {
namespace {

constexpr std::int32_t kBlockTokens = 64;
RequestKey key(std::uint64_t n) { return {1, n}; }

struct CacheManagerTest : ::testing::Test {
  CacheManagerTest() { reset(10); }

  void reset(std::int32_t blocks) { cache.reset(++epoch, blocks, kBlockTokens); }
  const Grant& grow(std::uint64_t k, std::int32_t blocks, std::int32_t keep_free = 0) {
    cache.answer({epoch, {}, {}, {{key(k), blocks, keep_free, {}}}, {}, {}, {}}, grants);
    return grants.grants.at(0);
  }
  const Grant& fork(std::uint64_t parent, std::uint64_t child, std::int32_t tokens, std::int32_t blocks) {
    cache.answer({epoch, {}, {{key(parent), key(child), tokens, blocks, 0}}, {}, {}, {}, {}}, grants);
    return grants.grants.at(0);
  }
  void release(std::uint64_t k) { cache.answer({epoch, {key(k)}, {}, {}, {}, {}, {}}, grants); }
  wire::CacheDone done(std::uint64_t id, std::uint32_t failed = 0) const {
    wire::CacheDone record;
    record.header = {wire::RecordKind::cache_done, sizeof record, epoch, 0};
    record.id = id;
    record.failed = failed;
    return record;
  }
  bool end(const wire::CacheDone& record) {
    CacheGrants update;
    return cache.done(record, update);
  }
  void expect_counts(std::int32_t free, std::int32_t leased, std::int32_t moving) {
    const CacheStatus s = cache.status();
    EXPECT_EQ(s.free, free);
    EXPECT_EQ(s.leased, leased);
    EXPECT_EQ(s.moving, moving);
    EXPECT_EQ(s.free + s.cached + s.leased + s.moving, s.total);
    EXPECT_TRUE(cache.sound());
  }

  CacheManager cache;
  CacheGrants grants;
  std::uint32_t epoch = 0;
};

TEST_F(CacheManagerTest, GrowsAllOrNothing) {
  EXPECT_FALSE(grow(1, 3).refused);
  EXPECT_EQ(grants.blocks.size(), 3u);
  expect_counts(7, 3, 0);

  const Grant more = grow(1, 5);
  EXPECT_EQ(more.first, 3);
  EXPECT_EQ(more.blocks, 2);
  EXPECT_EQ(cache.table(key(1)).size(), 5u);

  EXPECT_TRUE(grow(2, 6).refused);
  EXPECT_TRUE(grants.blocks.empty());
  EXPECT_TRUE(cache.table(key(2)).empty());
  expect_counts(5, 5, 0);
}

TEST_F(CacheManagerTest, RequestingBlocksAlreadyHeldGrantsNothing) {
  grow(1, 10);
  const Grant same = grow(1, 10);
  EXPECT_FALSE(same.refused);
  EXPECT_EQ(same.blocks, 0);
}

TEST_F(CacheManagerTest, RespectsTheReserveOfFreeBlocks) {
  EXPECT_TRUE(grow(1, 8, 3).refused);
  EXPECT_FALSE(grow(1, 7, 3).refused);
  expect_counts(3, 7, 0);
}

TEST_F(CacheManagerTest, ReleaseIsIdempotent) {
  grow(1, 4);
  release(1);
  release(1);
  release(99);
  expect_counts(10, 0, 0);
  EXPECT_EQ(cache.leases(), 0u);
}

TEST_F(CacheManagerTest, ForkSharesFullBlocksAndCopiesThePartialOne) {
  grow(1, 4);
  const std::vector<BlockId> parent(cache.table(key(1)).begin(), cache.table(key(1)).end());
  const Grant forked = fork(1, 2, 2 * kBlockTokens + 5, 4);
  ASSERT_FALSE(forked.refused);
  EXPECT_EQ(forked.first, 0);
  ASSERT_EQ(forked.blocks, 4);
  const std::vector<BlockId> child(cache.table(key(2)).begin(), cache.table(key(2)).end());
  EXPECT_TRUE(std::equal(child.begin(), child.end(), grants.blocks.begin()));
  EXPECT_EQ(child[0], parent[0]);
  EXPECT_EQ(child[1], parent[1]);
  for (int i : {2, 3})
    EXPECT_EQ(std::count(parent.begin(), parent.end(), child[static_cast<std::size_t>(i)]), 0);
  expect_counts(4, 5, 1);  // the two shared blocks are counted once

  wire::RecordView view;
  ASSERT_TRUE(cache.commands() == 1 && wire::RecordView::open(cache.command(0), view));
  const wire::CacheCommand* command = view.as<wire::CacheCommand>();
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(command->id, 1u);
  EXPECT_EQ(command->header.epoch, epoch);
  EXPECT_EQ(grants.last_command, 1u);
  const std::span<const wire::BlockCopy> copies = view.array(command->copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, parent[2]);
  EXPECT_EQ(copies[0].to, child[2]);

  EXPECT_TRUE(end(done(1)));
  expect_counts(4, 6, 0);
  release(1);
  expect_counts(6, 4, 0);
  release(2);
  expect_counts(10, 0, 0);
}

TEST_F(CacheManagerTest, ForkAtABlockBoundaryCopiesNothing) {
  grow(1, 2);
  ASSERT_FALSE(fork(1, 2, 2 * kBlockTokens, 3).refused);
  EXPECT_EQ(cache.commands(), 0u);
  EXPECT_EQ(grants.last_command, 0u);
  expect_counts(7, 3, 0);
}

TEST_F(CacheManagerTest, ForkIsRefusedWithoutRoomParentOrPositions) {
  grow(1, 9);
  EXPECT_TRUE(fork(1, 2, 5, 2).refused);
  EXPECT_TRUE(fork(7, 2, 5, 1).refused);
  EXPECT_TRUE(fork(1, 2, 10 * kBlockTokens, 10).refused);
  EXPECT_TRUE(fork(1, 1, 5, 1).refused);
  expect_counts(1, 9, 0);
}

TEST_F(CacheManagerTest, ABlockReleasedWhileItIsCopiedIsFreeAtOnceAndALateConfirmationChangesNothing) {
  grow(1, 1);
  fork(1, 2, 5, 1);
  expect_counts(8, 1, 1);
  release(2);
  expect_counts(9, 1, 0);
  fork(1, 3, 5, 1);  // copies to the same block in a later command
  expect_counts(8, 1, 1);
  EXPECT_TRUE(end(done(1)));
  expect_counts(8, 1, 1);
  EXPECT_TRUE(end(done(2)));
  expect_counts(8, 2, 0);
}

TEST_F(CacheManagerTest, OneCommandHoldsAllCopiesOfOneRound) {
  grow(1, 1);
  cache.answer({epoch, {}, {{key(1), key(2), 5, 1, 0}, {key(1), key(3), 5, 1, 0}}, {}, {}, {}, {}}, grants);
  wire::RecordView view;
  ASSERT_TRUE(cache.commands() == 1 && wire::RecordView::open(cache.command(0), view));
  EXPECT_EQ(view.array(view.as<wire::CacheCommand>()->copies).size(), 2u);
  EXPECT_EQ(grants.grants.size(), 2u);
  expect_counts(7, 1, 2);
}

TEST_F(CacheManagerTest, AFailedOrUnknownCommandIsReported) {
  grow(1, 1);
  fork(1, 2, 5, 1);
  EXPECT_FALSE(end(done(1, 1)));
  EXPECT_FALSE(end(done(2)));
  EXPECT_FALSE(end(done(0)));
  wire::CacheDone late = done(1, 1);
  late.header.epoch = epoch - 1;
  EXPECT_TRUE(end(late));
}

TEST_F(CacheManagerTest, ANewEpochDropsLeasesAndIgnoresRequestsOfTheOldOne) {
  grow(1, 4);
  fork(1, 2, 5, 2);
  reset(6);
  expect_counts(6, 0, 0);
  cache.answer({epoch - 1, {}, {}, {{key(1), 2, 0, {}}}, {}, {}, {}}, grants);
  EXPECT_TRUE(grants.grants.empty());
  EXPECT_EQ(grants.epoch, epoch - 1);
  expect_counts(6, 0, 0);
  grow(3, 1);
  ASSERT_FALSE(fork(3, 4, 5, 1).refused);
  EXPECT_EQ(grants.last_command, 1u);  // ids start at 1 again
}

TEST_F(CacheManagerTest, CountsHoldUnderRandomOperations) {
  std::mt19937 random(3);
  reset(40);
  std::uint64_t next = 0;
  std::uint64_t ended = 0, last = 0;  // commands
  std::vector<std::uint64_t> live;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t some = live.empty() ? 1 : live[random() % live.size()];
    const std::int32_t held = static_cast<std::int32_t>(cache.table(key(some)).size());
    switch (random() % 6) {
      case 0:
        if (!grow(++next, static_cast<std::int32_t>(1 + random() % 6)).refused) live.push_back(next);
        break;
      case 1:
        if (!live.empty()) grow(some, held + static_cast<std::int32_t>(random() % 3));
        break;
      case 2:
      case 3:
        if (!live.empty()) {
          const std::int32_t tokens =
              static_cast<std::int32_t>(random() % static_cast<unsigned>(held * kBlockTokens));
          if (!fork(some, ++next, tokens, held + 1).refused) live.push_back(next);
        }
        break;
      case 4:
        release(some);
        std::erase(live, some);
        break;
      default:
        if (ended < last && random() % 2 == 0) {
          ASSERT_TRUE(end(done(++ended)));
        }
    }
    last = std::max(last, grants.last_command);
    if (i % 16 == 0) {
      ASSERT_TRUE(cache.sound()) << "at operation " << i;
    }
  }
  for (std::uint64_t k : live) release(k);
  expect_counts(40, 0, 0);
}

}  // namespace
}  // namespace troupe
