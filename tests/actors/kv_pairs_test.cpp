// By which way a worker gets another instance's KV blocks, and what it does when a pair ends.
#include "actors/worker/kv_pairs.h"

#include <gtest/gtest.h>

#include <optional>

namespace troupe {
namespace {

using namespace std::chrono_literals;

/// An executor that says what it is asked for; pairs say what the test lets them say.
class PairingExecutor final : public Executor {
 public:
  wire::Capacity capacity() const override { return {}; }
  std::string device() const override { return "fake"; }
  Status submit(const wire::RecordView&) override { return {}; }
  Result<bool> poll(std::vector<std::byte>&, TimePoint) override { return false; }
  void reset(std::uint32_t) override {}

  Status attach_peer(std::uint32_t peer, const PeerKvMemory& memory) override {
    read.emplace_back(peer, memory.rank);
    EXPECT_EQ(memory.fd, 7);
    return memory.rank == unreadable_rank ? failure(Code::unavailable, "GPU 0 cannot read it") : other;
  }
  void detach_peer(std::uint32_t peer, int rank) override { detached.emplace_back(peer, rank); }
  Result<bool> attach_pair(std::uint32_t peer, const PeerKvMemory& memory, OwnedFd socket,
                           TellPair tell) override {
    EXPECT_TRUE(socket.valid());
    EXPECT_EQ(memory.fd, -1) << "it is borrowed for attach_peer() alone";
    EXPECT_EQ(memory.life, 41u);
    EXPECT_EQ(memory.own_life, 9u);
    if (!pairs) return failure(Code::unsupported, "this device moves no KV blocks by NCCL");
    paired.emplace_back(peer, memory.rank);
    tells.push_back(std::move(tell));
    return true;
  }

  using Ranks = std::vector<std::pair<std::uint32_t, int>>;
  int unreadable_rank = -1;
  Status other;
  bool pairs = true;
  Ranks read, paired, detached;
  std::vector<TellPair> tells;
};

class KvPairsTest : public ::testing::Test {
 protected:
  KvPairs& make(bool always = false) {
    return pairs_.emplace(executor_, KvPairs::Setup{always,
                                                    [this](std::uint32_t peer, int rank, int socket) {
                                                      EXPECT_GE(socket, 0);
                                                      sent_.emplace_back(peer, rank);
                                                      return true;
                                                    },
                                                    [this](std::uint32_t peer, const std::string& why) {
                                                      refused_.push_back(std::to_string(peer) + ": " + why);
                                                    },
                                                    Log()});
  }
  Status attach(int rank, std::uint32_t peer = 1) { return pairs_->attach(peer, {rank, 2, 7, 4, 64, 41, 9}); }
  void tick(Duration later = 0s) { pairs_->tick(now_ += later); }
  using Ranks = PairingExecutor::Ranks;

  PairingExecutor executor_;
  std::optional<KvPairs> pairs_;
  Ranks sent_;
  std::vector<std::string> refused_;
  TimePoint now_ = Clock::now();
};

TEST_F(KvPairsTest, WhatCanBeReadIsRead) {
  make();
  EXPECT_TRUE(attach(0).ok());
  EXPECT_EQ(executor_.read, (Ranks{{1, 0}}));
  EXPECT_TRUE(executor_.paired.empty() && sent_.empty());
  executor_.other = invalid("another size");
  EXPECT_EQ(attach(1).message, "another size") << "no pair would help";
  EXPECT_TRUE(executor_.paired.empty());
}

TEST_F(KvPairsTest, OneRankThatCannotBeReadMakesPairsOfAll) {
  make();
  executor_.unreadable_rank = 1;
  EXPECT_TRUE(attach(0).ok());
  EXPECT_TRUE(attach(1).ok());
  EXPECT_EQ(executor_.paired, (Ranks{{1, 0}, {1, 1}}));
  EXPECT_EQ(sent_, executor_.paired);
  EXPECT_TRUE(attach(0).ok());
  EXPECT_EQ(executor_.read.size(), 2u) << "it comes by a pair from then on";
  EXPECT_EQ(executor_.paired.size(), 3u);
  pairs_->detach(1, 0);
  pairs_->detach(1, 1);
  EXPECT_EQ(executor_.detached, (Ranks{{1, 0}, {1, 1}}));
  executor_.unreadable_rank = -1;
  EXPECT_TRUE(attach(0).ok());
  EXPECT_EQ(executor_.read.size(), 3u) << "the next instance may be on another GPU";
}

TEST_F(KvPairsTest, TheOptionTakesPairsAlways) {
  make(true);
  EXPECT_TRUE(attach(0).ok());
  EXPECT_TRUE(executor_.read.empty());
  EXPECT_EQ(executor_.paired, (Ranks{{1, 0}}));
}

TEST_F(KvPairsTest, ADeviceWithoutPairsSaysWhyTheMemoryCannotBeRead) {
  make();
  executor_.unreadable_rank = 0;
  executor_.pairs = false;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(attach(0).message, "GPU 0 cannot read it");
}

TEST_F(KvPairsTest, APairThatIsLostIsTriedAgain) {
  make(true);
  ASSERT_TRUE(attach(0).ok());
  executor_.tells[0]({PairNews::What::ready, ""});
  executor_.tells[0]({PairNews::What::lost, "the other end has gone"});
  tick();
  EXPECT_EQ(executor_.paired.size(), 1u) << "not at once";
  tick(KvPairs::kPairRetry);
  ASSERT_EQ(executor_.paired.size(), 2u);
  executor_.tells[0]({PairNews::What::refused, "late"});
  tick();
  EXPECT_TRUE(refused_.empty()) << "what an earlier one says counts for nothing";
  for (std::size_t i = 1; i < 10; ++i) {  // as while the other worker is stopped
    ASSERT_EQ(executor_.tells.size(), i + 1);
    executor_.tells[i]({PairNews::What::lost, "the other end has stood still"});
    tick();
    tick(KvPairs::kPairRetry);
  }
  EXPECT_TRUE(refused_.empty());
}

TEST_F(KvPairsTest, APairThatFailsThreeTimesIsGivenUp) {
  make(true);
  ASSERT_TRUE(attach(0).ok());
  const auto fail = [this](Duration after) {
    const std::size_t last = executor_.tells.size() - 1;
    executor_.tells[last]({PairNews::What::ready, ""});
    tick();
    executor_.tells[last]({PairNews::What::failed, "NCCL: remote error"});
    tick(after);
    tick(KvPairs::kPairRetry);
    return executor_.tells.size() > last + 1;
  };
  EXPECT_TRUE(fail(0s));
  EXPECT_TRUE(fail(0s));
  EXPECT_TRUE(fail(2 * KvPairs::kTrial)) << "it was good for long";
  EXPECT_TRUE(fail(0s));
  EXPECT_FALSE(fail(0s)) << "then it is given up";
  EXPECT_EQ(refused_, std::vector<std::string>{"1: its KV blocks do not come by NCCL: NCCL: remote error"});
}

TEST_F(KvPairsTest, ARefusalIsSaidWithTheReasonForThePair) {
  make();
  executor_.unreadable_rank = 0;
  ASSERT_TRUE(attach(0).ok());
  executor_.tells[0]({PairNews::What::refused, "both instances are on GPU 0"});
  tick();
  EXPECT_EQ(refused_, std::vector<std::string>{"1: GPU 0 cannot read it; nor do its KV blocks come by NCCL: "
                                               "both instances are on GPU 0"});
  tick(KvPairs::kPairRetry);
  EXPECT_EQ(executor_.paired.size(), 1u);
}

TEST_F(KvPairsTest, NewsOfAMemoryThatHasGoneCountForNothing) {
  make(true);
  ASSERT_TRUE(attach(0).ok());
  pairs_->detach(1, 0);
  executor_.tells[0]({PairNews::What::lost, "the other end has gone"});
  tick();
  tick(KvPairs::kPairRetry);
  EXPECT_EQ(executor_.paired.size(), 1u);
  const TellPair late = executor_.tells[0];
  pairs_.reset();
  late({PairNews::What::lost, "the other end has gone"});  // of a pair that ends later
}

}  // namespace
}  // namespace troupe
