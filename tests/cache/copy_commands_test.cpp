// Copies in flight, the choice between copying and computing, and block tables: the parts of the cache
// manager alone.
#include "actors/cache/copy_commands.h"

#include <gtest/gtest.h>

#include "actors/cache/lease_table.h"
#include "actors/cache/restore_judge.h"

namespace troupe {
namespace {

TEST(CopyCommands, WritesSavesFirstAndCutsThemIntoCommands) {
  BlockPool pool(200);
  CopyCommands commands;
  commands.reset(3);
  for (int i = 0; i < 70; ++i) commands.add(wire::CacheOp::swap_out, {pool.take(), i});
  const BlockId from = pool.take();
  const BlockId to = pool.take();
  commands.add(wire::CacheOp::copy_blocks, {from, to});
  commands.write(pool);
  ASSERT_EQ(commands.records().size(), 3u);
  EXPECT_EQ(commands.find(1)->copies.size(), CopyCommands::kBlocksOfACommand);
  EXPECT_EQ(commands.find(2)->copies.size(), 6u);
  EXPECT_EQ(commands.find(3)->op, wire::CacheOp::copy_blocks);
  EXPECT_EQ(commands.find(0), nullptr);
  EXPECT_EQ(commands.find(4), nullptr);
  EXPECT_EQ(pool.used_by(to), 3u);
  commands.end(*commands.find(3), false, pool);
  EXPECT_EQ(commands.find(3), nullptr);
  EXPECT_EQ(pool.used_by(to), 0u);
}

TEST(CopyCommands, BoundsWhatIsUnfinished) {
  BlockPool pool(600);
  CopyCommands commands;
  commands.reset(1);
  int saves = 0;
  for (; commands.may_save(); ++saves) commands.add(wire::CacheOp::swap_out, {pool.take(), saves});
  EXPECT_EQ(saves, 512);
  commands.write(pool);
  EXPECT_FALSE(commands.may_save());
  EXPECT_TRUE(commands.may_fetch(4095));
  EXPECT_FALSE(commands.may_fetch(4096));
  commands.end(*commands.find(1), false, pool);
  EXPECT_TRUE(commands.may_save());
}

TEST(RestoreJudge, ForgetsSpeedsAfterManyDeclinedBlocks) {
  RestoreJudge judge;
  judge.reset(64, 1000);
  EXPECT_EQ(judge.judge(1, true, true), Restore::swap) << "nothing is measured yet";
  judge.set_prefill_speed(1e9);
  judge.add_out(1, 1);
  judge.add_in(1, 1);
  EXPECT_EQ(judge.judge(255, true, true), Restore::recompute);
  EXPECT_EQ(judge.judge(1, true, true), Restore::recompute);
  EXPECT_EQ(judge.judge(1, true, true), Restore::swap) << "measured again";
  EXPECT_EQ(judge.declined(), 256);
}

TEST(LeaseTable, ReportsALeaseWhenNoCopyWritesItsBlocks) {
  BlockPool pool(4);
  LeaseTable leases;
  const RequestKey key{1, 7};
  EXPECT_EQ(leases.find(key), kNoLease);
  const LeaseIndex lease = leases.open(key);
  const BlockId block = pool.take();
  pool.begin_fill(block);
  pool.publish(block, {1, 2}, 0);
  pool.use(block, 9, true);
  leases.at(lease).blocks.push_back(block);
  leases.await_fetch(key, 1);
  std::vector<FetchOutcome> ended;
  leases.end_fetches(pool, ended);
  EXPECT_TRUE(ended.empty());
  pool.end_use(block, 9, /*failed=*/true);
  leases.end_fetches(pool, ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].failed);
  EXPECT_EQ(leases.holders(4)[static_cast<std::size_t>(block)], 1);
  leases.close(key);
  EXPECT_EQ(leases.size(), 0u);
  EXPECT_TRUE(leases.at(leases.open({1, 8})).blocks.empty());
}

}  // namespace
}  // namespace troupe
