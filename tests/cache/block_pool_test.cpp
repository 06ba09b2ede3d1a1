#include "actors/cache/block_pool.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr BlockHash kFirst{1, 11}, kSecond{2, 22};

/// A block with published contents that nobody holds.
BlockId cached(BlockPool& pool, const BlockHash& hash, std::int32_t place) {
  const BlockId block = pool.take();
  pool.publish(block, hash, place);
  pool.drop(block);
  return block;
}

TEST(BlockPool, ACachedBlockIsFreeOnceAHeldOneHasItsContents) {
  BlockPool pool(4);
  const BlockId old = cached(pool, kFirst, 0);
  const BlockId other = cached(pool, kSecond, 1);
  const BlockId again = pool.take();
  pool.publish(again, kFirst, 0);
  EXPECT_EQ(pool.find(kFirst), again);
  EXPECT_EQ(pool.find(kSecond), other);
  EXPECT_EQ(pool.status().cached, 1);
  EXPECT_EQ(pool.status().free, 2);
  EXPECT_TRUE(pool.sound());
  EXPECT_EQ(pool.take(), old) << "memory that was used is used before memory that never was";
  EXPECT_TRUE(pool.sound());
  pool.drop(again);
  EXPECT_EQ(pool.find(kFirst), again);
  EXPECT_EQ(pool.status().evicted, 0);
  EXPECT_TRUE(pool.sound());
}

TEST(BlockPool, ABlockThatSomeoneHoldsStaysFound) {
  BlockPool pool(4);
  const BlockId old = cached(pool, kFirst, 0);
  pool.share(old);
  const BlockId again = pool.take();
  pool.publish(again, kFirst, 0);
  EXPECT_EQ(pool.find(kFirst), old);
  pool.drop(again);
  EXPECT_EQ(pool.find(kFirst), old);
  EXPECT_EQ(pool.status().free, 3);
  EXPECT_TRUE(pool.sound());
}

// A copy that has not ended may still fail: until then its target is not what the contents are found by
// alone.
TEST(BlockPool, ACachedBlockThatIsBeingFilledStays) {
  BlockPool pool(4);
  const BlockId target = pool.take();
  pool.use(target, 1, /*writes=*/true);
  pool.publish(target, kFirst, 0);
  pool.drop(target);
  const BlockId again = pool.take();
  pool.publish(again, kFirst, 0);
  EXPECT_EQ(pool.find(kFirst), target);
  EXPECT_TRUE(pool.sound());
  pool.end_use(target, 1);
  EXPECT_TRUE(pool.sound());
}

TEST(BlockPool, SavedBlocksStayTheOldestWhenOneBecomesFree) {
  BlockPool pool(5);
  const BlockId old = cached(pool, kFirst, 0);
  cached(pool, kSecond, 1);
  pool.mark_saved();
  ASSERT_TRUE(pool.saved(old));
  const BlockId again = pool.take();
  pool.publish(again, kFirst, 0);
  EXPECT_FALSE(pool.saved(old));
  EXPECT_TRUE(pool.sound());
  pool.mark_saved();
  EXPECT_TRUE(pool.sound());
}

}  // namespace
}  // namespace troupe
