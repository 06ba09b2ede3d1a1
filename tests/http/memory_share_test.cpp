// What one connection contributes to the bytes that the server holds, and the bodies that are refused by it.
#include "http/server/memory_share.h"

#include <gtest/gtest.h>

namespace troupe::http {
namespace {

constexpr std::int64_t kRoom = 10 << 20;

TEST(MemoryShare, AddsItsChangesToTheTotals) {
  MemoryTotals totals;
  MemoryShare one(totals, kRoom);
  MemoryShare other(totals, kRoom);
  one.set_held(100);
  other.set_held(50);
  one.set_held(30);
  EXPECT_EQ(totals.held, 80);
  EXPECT_EQ(totals.most_held, 150);
  one.set_unsent(7);
  one.set_unsent(3);
  EXPECT_EQ(totals.unsent, 3);
  one.set_held(0);
  other.set_held(0);
  one.set_unsent(0);
  EXPECT_EQ(totals.held, 0);
  EXPECT_EQ(totals.unsent, 0);
}

TEST(MemoryShare, RefusesALengthThatFindsNoRoom) {
  MemoryTotals totals;
  MemoryShare one(totals, kRoom);
  MemoryShare other(totals, kRoom);
  EXPECT_TRUE(one.check_length(kRoom).ok());
  EXPECT_EQ(one.check_length(kRoom + 1).code, Code::too_large);
  other.set_held(kRoom - 100'000);
  EXPECT_TRUE(one.check_length(100'000).ok());
  EXPECT_EQ(one.check_length(100'001).code, Code::unavailable);
  EXPECT_TRUE(one.check_length(64 << 10).ok()) << "small bodies are not asked";
  one.set_held(50'000);  // its own bytes are part of the body
  EXPECT_TRUE(one.check_length(100'000).ok());
}

TEST(MemoryShare, LeavesMoreRoomForSmallBodies) {
  MemoryTotals totals;
  MemoryShare small(totals, kRoom);
  MemoryShare large(totals, kRoom);
  MemoryShare rest(totals, kRoom);
  small.set_held(1000);
  large.set_held(200'000);
  rest.set_held(kRoom);
  EXPECT_TRUE(small.check_received(1000).ok());
  EXPECT_TRUE(large.check_received(0).ok());
  EXPECT_EQ(large.check_received(200'000).code, Code::unavailable);
  rest.set_held(kRoom + kRoom / 8);
  EXPECT_EQ(small.check_received(1000).code, Code::unavailable);
  rest.set_held(0);
  large.set_held(kRoom + 1);
  EXPECT_EQ(large.check_received(kRoom + 1).code, Code::too_large);
}

}  // namespace
}  // namespace troupe::http
