// The blocks of the swap space, and what makes a copy worth it.
#include "actors/cache/swap_pool.h"

#include <gtest/gtest.h>

#include "actors/cache/restore_cost.h"

namespace troupe {
namespace {

BlockHash contents_named(std::uint64_t contents) { return {2, contents}; }

TEST(SwapPool, ContentsAreFoundWhenTheCopyToThemHasEndedWell) {
  SwapPool pool(2);
  const BlockId a = pool.begin_save(contents_named(1));
  EXPECT_TRUE(pool.knows(contents_named(1)));
  EXPECT_EQ(pool.find(contents_named(1)), kNoBlock);
  EXPECT_EQ(pool.status().moving, 1);
  pool.end_save(a, true);
  EXPECT_EQ(pool.find(contents_named(1)), a);
  const BlockId b = pool.begin_save(contents_named(2));
  pool.end_save(b, false);
  EXPECT_FALSE(pool.knows(contents_named(2)));
  EXPECT_EQ(pool.status().free, 1);
  EXPECT_TRUE(pool.sound());
}

TEST(SwapPool, TakesTheLeastRecentlyUsedBlockButNoneThatIsMoving) {
  SwapPool pool(3);
  for (std::uint64_t c = 1; c <= 3; ++c) pool.end_save(pool.begin_save(contents_named(c)), true);
  const BlockId first = pool.find(contents_named(1));
  pool.begin_fetch(first);
  pool.begin_fetch(first);
  pool.end_fetch(first, true);
  EXPECT_EQ(pool.status().moving, 1);
  pool.begin_save(contents_named(4));
  EXPECT_FALSE(pool.knows(contents_named(2)));
  pool.begin_save(contents_named(5));
  EXPECT_FALSE(pool.knows(contents_named(3)));
  EXPECT_FALSE(pool.can_save());
  pool.end_fetch(first, true);
  EXPECT_EQ(pool.find(contents_named(1)), first);
  EXPECT_EQ(pool.status().evicted, 2);
  EXPECT_TRUE(pool.sound());
}

TEST(SwapPool, AFailedFetchForgetsTheContents) {
  SwapPool pool(1);
  const BlockId block = pool.begin_save(contents_named(1));
  pool.end_save(block, true);
  pool.begin_fetch(block);
  pool.begin_fetch(block);
  pool.end_fetch(block, false);
  EXPECT_EQ(pool.find(contents_named(1)), kNoBlock);
  pool.end_fetch(block, true);
  EXPECT_EQ(pool.status().free, 1);
}

TEST(SwapPool, ForgettingLeavesMovingBlocksUntilTheirCopiesEnd) {
  SwapPool pool(3);
  const BlockId saving = pool.begin_save(contents_named(1));
  const BlockId fetched = pool.begin_save(contents_named(2));
  pool.end_save(fetched, true);
  pool.begin_fetch(fetched);
  pool.end_save(pool.begin_save(contents_named(3)), true);
  pool.forget();
  EXPECT_EQ(pool.status().moving, 2);
  EXPECT_EQ(pool.status().free, 1);
  pool.end_save(saving, true);
  pool.end_fetch(fetched, true);
  EXPECT_EQ(pool.status().free, 3);
  EXPECT_TRUE(pool.sound());
}

TEST(RestoreCost, TheFasterWayIsTaken) {
  const RestoreWork work{640, 0, 10'000'000};                         // 10 ms at 1 GB/s
  EXPECT_EQ(cheaper_restore(work, {10'000, 0, 1e9}), Restore::swap);  // 64 ms to compute
  EXPECT_EQ(cheaper_restore(work, {100'000, 0, 1e9}), Restore::recompute);
  EXPECT_EQ(cheaper_restore(work, {64'000, 0, 1e9}), Restore::swap) << "10 ms each";
  const RestoreWork both{640, 10'000'000, 10'000'000};
  EXPECT_EQ(cheaper_restore(both, {40'000, 1e9, 1e9}), Restore::recompute) << "16 ms against 20";
  EXPECT_EQ(cheaper_restore(both, {40'000, 2e9, 1e9}), Restore::swap) << "16 ms against 15";
}

TEST(RestoreCost, UnknownSpeedsAreMeasuredByCopying) {
  const RestoreWork in{64, 0, 1 << 20}, both{64, 1 << 20, 1 << 20};
  EXPECT_EQ(cheaper_restore(in, {}), Restore::swap);
  EXPECT_EQ(cheaper_restore(in, {1e9, 0, 0}), Restore::swap);
  EXPECT_EQ(cheaper_restore(both, {1e9, 0, 1}), Restore::swap);
  EXPECT_EQ(cheaper_restore(in, {0, 1, 1}), Restore::swap);
  EXPECT_EQ(cheaper_restore(in, {1e9, 0, 1e6}), Restore::recompute) << "the way out is not needed";
}

TEST(RestoreCost, AMeasuredSpeedFollowsAndIgnoresNonsense) {
  MeasuredSpeed speed;
  speed.add(100, 0);
  speed.add(0, 1);
  speed.add(100, -1);
  EXPECT_EQ(speed.value(), 0);
  speed.add(100, 1);
  EXPECT_EQ(speed.value(), 100);
  speed.add(200, 1);
  EXPECT_EQ(speed.value(), 125);
}

}  // namespace
}  // namespace troupe
