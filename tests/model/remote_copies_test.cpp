// Copies of KV blocks that come from another machine: beside the copies within this one, and given up with
// them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "model/swap/swap_copier.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

constexpr std::size_t kBytes = 64;
constexpr std::uint64_t kLifeThere = 9;

class RemoteCopiesTest : public ::testing::Test {
 protected:
  RemoteCopiesTest() : copier_(*SwapStore::in_memory(4, kBytes), {.first = 1, .count = 2}) {
    copier_.set_memory({{.data = kv_, .tail = kBytes}, 1});
  }
  void copy(wire::CacheOp op, std::uint32_t peer, std::vector<wire::BlockCopy> copies,
            std::uint64_t after = 0) {
    wire::CacheCommand command;
    command.id = ++last_;
    command.after = after;
    command.op = op;
    command.peer = peer;
    command.memory = kLifeThere;
    copier_.submit(command, copies);
  }
  EndedCommand next_end() {
    EndedCommand ended;
    EXPECT_TRUE(copier_.take_ended(ended, Clock::now() + troupe::test::kPatience));
    return ended;
  }
  std::byte* block(std::size_t number) { return kv_ + number * kBytes; }

  std::byte kv_[8 * kBytes] = {};
  std::uint64_t last_ = 0;
  std::atomic<bool> goes_on_{false};
  SwapCopier copier_;

  /// Bytes that say which block they are of, once `goes_on_`.
  FetchBlocks fetch() {
    return [this](std::uint64_t life, std::span<const wire::BlockCopy> copies, const auto& take,
                  const std::atomic<bool>& stop) {
      while (!goes_on_ && !stop) std::this_thread::yield();
      for (const wire::BlockCopy& copy : copies) {
        if (stop || life != kLifeThere) return false;
        const std::vector<std::byte> bytes(kBytes, static_cast<std::byte>(copy.from));
        take(copy, bytes);
      }
      return true;
    };
  }
};

TEST_F(RemoteCopiesTest, BlocksComeFromTheInstanceThatACommandNames) {
  goes_on_ = true;
  ASSERT_TRUE(copier_.set_remote_peer(1, fetch()));
  copy(wire::CacheOp::peer_in, 1, {{40, 2}, {41, 5}});
  const EndedCommand ended = next_end();
  EXPECT_EQ(ended.id, 1u);
  EXPECT_FALSE(ended.failed);
  EXPECT_EQ(*block(2), std::byte{40});
  EXPECT_EQ(block(5)[kBytes - 1], std::byte{41});
  copy(wire::CacheOp::peer_in, 2, {{40, 2}});
  EXPECT_TRUE(next_end().failed) << "nobody has said how blocks of that one come";
  EXPECT_FALSE(copier_.set_remote_peer(0, fetch())) << "it is of this machine";
  EXPECT_FALSE(copier_.set_remote_peer(3, fetch()));
}

TEST_F(RemoteCopiesTest, ANetworkThatStandsStillHoldsUpNoOtherCopies) {
  ASSERT_TRUE(copier_.set_remote_peer(1, fetch()));
  copy(wire::CacheOp::peer_in, 1, {{40, 2}});
  *block(0) = std::byte{77};
  copy(wire::CacheOp::swap_out, 0, {{0, 3}});
  EXPECT_EQ(next_end().id, 2u);
  copy(wire::CacheOp::swap_in, 0, {{3, 2}}, /*after=*/1);
  copy(wire::CacheOp::swap_in, 0, {{3, 6}});
  EXPECT_EQ(next_end().id, 4u);
  EXPECT_EQ(*block(6), std::byte{77});
  goes_on_ = true;
  EXPECT_EQ(next_end().id, 1u);
  EXPECT_EQ(next_end().id, 3u) << "which has waited for it";
  EXPECT_EQ(*block(2), std::byte{77});
}

TEST_F(RemoteCopiesTest, AResetEndsACopyThatIsUnderWay) {
  ASSERT_TRUE(copier_.set_remote_peer(1, fetch()));
  copy(wire::CacheOp::peer_in, 1, {{40, 2}});
  copier_.reset();
  EXPECT_EQ(copier_.open(), 0u);
  EXPECT_EQ(*block(2), std::byte{0});
  goes_on_ = true;
  last_ = 0;
  copy(wire::CacheOp::peer_in, 1, {{40, 2}});
  EXPECT_FALSE(next_end().failed);
}

TEST_F(RemoteCopiesTest, BytesThatAreNoBlockFail) {
  ASSERT_TRUE(copier_.set_remote_peer(2, [](std::uint64_t, std::span<const wire::BlockCopy> copies,
                                            const auto& take, const std::atomic<bool>&) {
    const std::vector<std::byte> bytes(kBytes / 2);
    take(copies.front(), bytes);
    return true;
  }));
  copy(wire::CacheOp::peer_in, 2, {{40, 2}});
  EXPECT_TRUE(next_end().failed);
}

}  // namespace
}  // namespace troupe::model
