// KV blocks of another instance: a decode instance's cache manager finds them by the names that the prefill
// instance's manager has published, and takes only what is still there when the copies have ended.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <utility>

#include "cache/instance.h"

namespace troupe {
namespace {

using test::Contents;
using test::Instance;
using test::make_table;

struct PeerTest : ::testing::Test {
  static constexpr std::uint64_t kLife = 77;

  PeerTest() {
    prefill.cache.keep_names(names);
    prefill.start(8, kLife);
    decode.cache.use_peers(PeerBlocks({names}));
    decode.start(8, 5);
  }
  /// The decode instance's worker makes the copies of its oldest command as the memory is now.
  void copy() { decode.copy(prefill); }

  std::shared_ptr<ipc::BlockNames> names = make_table();
  Instance prefill, decode;
};

TEST_F(PeerTest, APromptThatTheOtherHasComputedIsCopied) {
  prefill.admit(1, {11, 12, 13});
  prefill.compute(1, {11, 12, 13}, 0);
  const Grant grant = decode.admit(1, {11, 12, 13}, 1);
  EXPECT_EQ(grant.cached, 3);
  EXPECT_EQ(grant.swapped, 0);
  EXPECT_EQ(grant.blocks, 4);
  EXPECT_TRUE(grant.fetching) << "no plan may name the table yet";
  ASSERT_EQ(decode.commands.size(), 1u);
  const auto& command = decode.commands.front();
  EXPECT_EQ(command.header.op, wire::CacheOp::peer_in);
  EXPECT_EQ(command.header.peer, 0u);
  EXPECT_EQ(command.header.memory, kLife);
  ASSERT_EQ(command.copies.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(command.copies[i].from, prefill.table(1)[i]);
    EXPECT_EQ(command.copies[i].to, decode.table(1)[i]);
  }
  copy();
  decode.end();
  ASSERT_EQ(decode.update.fetched.size(), 1u);
  EXPECT_FALSE(decode.update.fetched[0].failed);
  EXPECT_EQ(decode.update.status.peers, (PeerStatus{3, 0}));
  EXPECT_EQ(decode.admit(2, {11, 12, 13}).fetching, false) << "the second time they are its own";
  EXPECT_TRUE(decode.commands.empty());
}

TEST_F(PeerTest, ItsOwnBlocksComeFirstAndTheChainEndsAtTheFirstThatIsNowhere) {
  prefill.leave(1, {11, 12, 13});
  decode.leave(1, {11});
  while (!decode.commands.empty()) decode.end();
  const Grant grant = decode.admit(2, {11, 12, 99, 13});
  EXPECT_EQ(grant.cached, 2);
  ASSERT_EQ(decode.commands.size(), 1u);
  EXPECT_EQ(decode.commands.front().copies.size(), 1u);
}

TEST_F(PeerTest, WhatTheOtherUsesForSomethingElseMeanwhileIsComputedHere) {
  prefill.leave(1, {11, 12});
  EXPECT_EQ(decode.admit(1, {11, 12}).cached, 2);
  copy();
  prefill.leave(2, {21, 22, 23, 24, 25, 26, 27, 28});  // takes every block
  decode.end();
  ASSERT_EQ(decode.update.fetched.size(), 1u);
  EXPECT_TRUE(decode.update.fetched[0].failed);
  EXPECT_EQ(decode.update.status.peers, (PeerStatus{0, 2}));
  EXPECT_EQ(decode.cache.leases(), 0u);
  EXPECT_EQ(decode.admit(1, {11, 12}).cached, 0);
  EXPECT_EQ(decode.admit(2, {21, 22}).cached, 2) << "the instance is trusted as before";
}

TEST_F(PeerTest, AnotherLifeOfTheMemoryHoldsNothingOfTheLast) {
  prefill.leave(1, {11, 12});
  EXPECT_EQ(decode.admit(1, {11}).cached, 1);
  prefill.start(8, kLife + 1);
  decode.end();
  EXPECT_TRUE(decode.update.fetched.at(0).failed);
  EXPECT_EQ(decode.admit(2, {11}).cached, 0);
  prefill.leave(2, {11});
  EXPECT_EQ(decode.admit(3, {11}).cached, 1);
  EXPECT_EQ(decode.commands.front().header.memory, kLife + 1);
}

TEST_F(PeerTest, AnInstanceWhoseMemoryCannotBeReadIsLeftAloneForAWhile) {
  prefill.leave(1, {11});
  decode.admit(1, {11});
  decode.end(false);
  EXPECT_TRUE(decode.update.fetched.at(0).failed);
  EXPECT_EQ(decode.admit(2, {11}).cached, 0);
  std::this_thread::sleep_for(PeerBlocks::kSkipped);
  EXPECT_EQ(decode.admit(3, {11}).cached, 1) << "its worker may have mapped the memory since";
}

TEST_F(PeerTest, ANewMemoryIsTriedThoughTheLastCouldNotBeRead) {
  prefill.leave(1, {11});
  decode.admit(1, {11});
  decode.end(false);
  EXPECT_EQ(decode.admit(2, {11}).cached, 0);
  prefill.start(8, kLife + 1);
  prefill.leave(2, {11});
  EXPECT_EQ(decode.admit(3, {11}).cached, 1);
}

TEST_F(PeerTest, EachInstanceHasCommandsOfItsOwn) {
  const auto other_names = make_table();
  Instance other;
  other.cache.keep_names(other_names);
  other.start(8, 123);
  decode.cache.use_peers(PeerBlocks({names, other_names}));
  prefill.leave(1, {11});
  other.leave(1, {12, 13});
  EXPECT_EQ(decode.admit(1, {11, 12, 13}).cached, 3);
  ASSERT_EQ(decode.commands.size(), 2u);
  EXPECT_EQ(decode.commands[0].header.peer, 0u);
  EXPECT_EQ(decode.commands[0].header.memory, kLife);
  EXPECT_EQ(decode.commands[1].header.peer, 1u);
  EXPECT_EQ(decode.commands[1].header.memory, 123u);
  EXPECT_EQ(decode.commands[1].copies.size(), 2u);
  decode.end();
  EXPECT_TRUE(decode.update.fetched.empty()) << "the other copies are under way";
  decode.end();
  EXPECT_EQ(decode.update.fetched.size(), 1u);
}

TEST_F(PeerTest, NoSequenceEverBeginsWithOtherContentsThanItsOwn) {
  std::mt19937 random(7);
  const auto below = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
  };
  const auto chain = [&] {  // of a few families, whose chains begin alike
    const std::uint64_t family = 1 + below(4);
    Contents out;
    for (std::uint64_t i = 0, count = 1 + below(4); i < count; ++i) out.push_back(100 * family + i);
    return out;
  };
  std::uint64_t next = 1, lives = kLife;
  int whole = 0, failed = 0;
  std::uint64_t waiting = 0;  // the decode instance's sequence whose blocks are being fetched; 0: none
  std::size_t found = 0;      // of its blocks
  Contents wanted;
  bool copied = false;
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t what = below(8);
    if (what < 3) {
      prefill.leave(next++, chain());
    } else if (what == 3) {
      if (below(50) == 0) prefill.start(8, ++lives);
    } else if (waiting == 0) {
      waiting = next++;
      wanted = chain();
      const Grant grant = decode.admit(waiting, wanted);
      ASSERT_FALSE(grant.refused);
      found = static_cast<std::size_t>(grant.cached);
      copied = false;
      if (grant.fetching) continue;
      decode.compute(waiting, wanted, grant.cached);
      ASSERT_EQ(decode.held(waiting), wanted);
      decode.release(std::exchange(waiting, 0));
    } else if (!copied) {
      copy();
      copied = true;
    } else {
      decode.end();
      ASSERT_EQ(decode.update.fetched.size(), 1u);
      if (decode.update.fetched[0].failed) {
        ++failed;
      } else {
        ++whole;
        const Contents held = decode.held(waiting);
        for (std::size_t i = 0; i < found; ++i) ASSERT_EQ(held[i], wanted[i]) << "round " << round;
        decode.release(waiting);
      }
      waiting = 0;
    }
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace troupe
