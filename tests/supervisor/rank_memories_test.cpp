// The KV memories of ranks as one: others are told of them when all are there, under a life that any new one
// changes.
#include <gtest/gtest.h>

#include "actors/supervisor/kv_memory.h"
#include "ipc/block_names.h"
#include "ipc/memory_file.h"

namespace troupe::supervisor {
namespace {

KvMemory memory_of(std::uint64_t life) { return {life, 4, 100, *ipc::make_memory_file("test-kv", 400)}; }

TEST(RankMemories, OneRanksLifeIsItsOwn) {
  RankMemories memories(1);
  EXPECT_EQ(memories.life(), 0u);
  memories.set(0, 10, memory_of(7));
  EXPECT_EQ(memories.life(), 7u);
  const nlohmann::json members = memories.members(0);
  EXPECT_EQ(members["life"], "7");
  EXPECT_EQ(members["blocks"], 4);
  EXPECT_EQ(members["block_bytes"], 100);
  EXPECT_GE(memories.file(0), 0);
}

TEST(RankMemories, SeveralHaveALifeWhenAllAreThere) {
  RankMemories memories(2);
  memories.set(1, 11, memory_of(8));
  EXPECT_EQ(memories.life(), 0u);
  memories.set(0, 10, memory_of(7));
  EXPECT_EQ(memories.life(), ipc::lives_together(7, 8));
  EXPECT_EQ(memories.members(1)["life"], std::to_string(ipc::lives_together(7, 8)));
  memories.set(1, 12, memory_of(9));
  EXPECT_EQ(memories.life(), ipc::lives_together(7, 9));
}

TEST(RankMemories, AWorkerThatIsNoLongerTheRanksTakesItsMemoryAlong) {
  RankMemories memories(2);
  memories.set(0, 10, memory_of(7));
  memories.set(1, 11, memory_of(8));
  EXPECT_FALSE(memories.keep_of(0, 10));
  EXPECT_TRUE(memories.keep_of(0, 0)) << "it has ended";
  EXPECT_FALSE(memories.keep_of(0, 12)) << "which is told once";
  EXPECT_EQ(memories.life(), 0u);
  EXPECT_FALSE(memories.keep_of(5, 12));
  memories.set(5, 12, memory_of(9));
  EXPECT_EQ(memories.ranks(), 2u);
}

}  // namespace
}  // namespace troupe::supervisor
