// Blocks that a worker wants and a relay answers, in shared memory; either may go and come anew.
#include "ipc/block_fetches.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "support/patience.h"

namespace troupe::ipc {
namespace {

constexpr std::uint64_t kBlock = 5000;  // takes two pages
constexpr std::uint64_t kLife = 77;

class BlockFetchesTest : public ::testing::Test {
 protected:
  using Want = BlockFetches::Want;

  BlockFetchesTest() {
    EXPECT_TRUE(worker_.begin(kBlock).ok());
    relay_.set_connected(true);
  }
  static BlockFetches attach(const Fd& fd) { return *BlockFetches::attach(fd.get()); }
  std::optional<Want> next() { return relay_.next_want(seen_, TimePoint{}); }
  void fill(const Want& want, int byte) {
    const auto room = relay_.room(want.slot, kBlock);
    ASSERT_EQ(room.size(), kBlock);
    std::memset(room.data(), byte, room.size());
  }

  Fd fd_ = *BlockFetches::create(3 * 8192);
  BlockFetches worker_ = attach(fd_), relay_ = attach(fd_);
  std::array<std::uint64_t, BlockFetches::kMostSlots> seen_{};
};

TEST_F(BlockFetchesTest, ABlockComesWithItsBytes) {
  EXPECT_EQ(worker_.slots(kBlock), 3u);
  EXPECT_FALSE(next());
  worker_.want(2, kLife, 41);
  const auto want = next();
  ASSERT_TRUE(want);
  EXPECT_EQ(std::tuple(want->slot, want->memory, want->block), std::tuple(2u, kLife, 41));
  EXPECT_FALSE(next()) << "it was seen";
  EXPECT_FALSE(worker_.await(2, TimePoint{})) << "nothing is known yet";
  fill(*want, 7);
  relay_.answer(*want, true);
  EXPECT_EQ(worker_.await(2, TimePoint{}), true);
  ASSERT_EQ(worker_.contents(2).size(), kBlock);
  EXPECT_EQ(worker_.contents(2).front(), std::byte{7});
  EXPECT_EQ(worker_.contents(2).back(), std::byte{7});
}

TEST_F(BlockFetchesTest, AFailureIsKnown) {
  worker_.want(0, kLife, 1);
  relay_.answer(*next(), false);
  EXPECT_EQ(worker_.await(0, TimePoint{}), false);
}

TEST_F(BlockFetchesTest, AnAnswerToAWantThatWasGivenUpChangesNothing) {
  worker_.want(0, kLife, 1);
  const Want old = *next();
  worker_.give_back(0);
  relay_.answer(old, true);
  EXPECT_FALSE(next());
  worker_.want(0, kLife, 2);
  relay_.answer(old, true);
  EXPECT_FALSE(worker_.await(0, TimePoint{})) << "the second want has no answer yet";
  const auto want = next();
  ASSERT_TRUE(want) << "the same slot in another turn is another want";
  EXPECT_EQ(want->block, 2);
  relay_.answer(*want, true);
  EXPECT_EQ(worker_.await(0, TimePoint{}), true);
}

TEST_F(BlockFetchesTest, WantsFailWhileTheRelayIsNotConnected) {
  worker_.want(0, kLife, 1);
  relay_.set_connected(false);
  EXPECT_EQ(worker_.await(0, TimePoint{}), false);
  relay_.set_connected(true);
  worker_.give_back(0);
  worker_.want(0, kLife, 3);
  EXPECT_EQ(next()->block, 3);
}

TEST_F(BlockFetchesTest, ANextWorkerFindsEverySlotFree) {
  worker_.want(0, kLife, 1);
  worker_.want(1, kLife, 2);
  const Want old = *next();
  BlockFetches second = attach(fd_);
  ASSERT_TRUE(second.begin(2 * kBlock).ok());
  relay_.answer(old, true);
  EXPECT_FALSE(next());
  EXPECT_EQ(relay_.block_bytes(), 2 * kBlock);
  EXPECT_TRUE(relay_.room(0, kBlock).empty()) << "blocks of the worker before";
  EXPECT_EQ(relay_.room(0, 2 * kBlock).size(), 2 * kBlock);
  EXPECT_TRUE(relay_.room(2, 2 * kBlock).empty()) << "there are two of these";
}

TEST_F(BlockFetchesTest, ANextRelaySeesWhatIsWantedStill) {
  worker_.want(1, kLife, 9);
  ASSERT_TRUE(next());
  BlockFetches second = attach(fd_);
  std::array<std::uint64_t, BlockFetches::kMostSlots> nothing_seen{};
  const auto want = second.next_want(nothing_seen, TimePoint{});
  ASSERT_TRUE(want);
  EXPECT_EQ(want->block, 9);
}

TEST_F(BlockFetchesTest, EachSideWakesTheOther) {
  std::thread relay([&] {
    for (int i = 0; i < 100; ++i) {
      const auto want = relay_.next_want(seen_, Clock::now() + test::kPatience);
      ASSERT_TRUE(want);
      fill(*want, want->block);
      relay_.answer(*want, true);
    }
  });
  for (int i = 0; i < 100; ++i) {
    worker_.want(0, kLife, i);
    EXPECT_EQ(worker_.await(0, Clock::now() + test::kPatience), true);
    EXPECT_EQ(worker_.contents(0).back(), static_cast<std::byte>(i));
    worker_.give_back(0);
  }
  relay.join();
}

TEST_F(BlockFetchesTest, ABlockThatHasNoRoomIsRefusedWithBothSizes) {
  const Status status = worker_.begin(1 << 20);
  EXPECT_EQ(status.code, Code::invalid_argument);
  EXPECT_NE(status.message.find("1048576"), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("24576"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace troupe::ipc
