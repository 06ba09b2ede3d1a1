#include "gpu/region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "gpu/cpu.h"

namespace troupe {
namespace {

TEST(Region, GapsAreFilledAndMerged) {
  Cpu device({.threads = 1, .pin = false});
  auto region = *Region<Cpu>::make(device, 1024, "a test");
  auto* const first = static_cast<std::byte*>(region.alloc(100));
  auto* const second = static_cast<std::byte*>(region.alloc(256));
  auto* const third = static_cast<std::byte*>(region.alloc(512));
  EXPECT_EQ(second, first + 256);
  EXPECT_EQ(third, first + 512);
  region.free(second);
  EXPECT_EQ(region.alloc(1), second);
  region.free(first);
  region.free(second);
  EXPECT_EQ(region.alloc(512), first) << "two neighbours are one gap";
  region.free(first);
  region.free(third);
  EXPECT_EQ(region.alloc(1024), first) << "and three";

  // What does not fit comes from the device.
  auto* const more = static_cast<std::byte*>(region.alloc(1));
  ASSERT_NE(more, nullptr);
  EXPECT_TRUE(more < first || more >= first + 1024);
  region.free(more);
  region.free(first);
  EXPECT_EQ(region.alloc(1024), first);
}

TEST(Region, PiecesDoNotOverlap) {
  Cpu device({.threads = 1, .pin = false});
  constexpr std::size_t kBytes = 1 << 16;
  auto region = *Region<Cpu>::make(device, kBytes, "a test");
  auto* const start = static_cast<std::byte*>(region.alloc(kBytes));
  region.free(start);
  std::mt19937 random(4);
  std::vector<std::pair<std::byte*, std::size_t>> pieces;
  std::size_t within = 0;
  for (int round = 0; round < 4000; ++round) {
    if (random() % 2 == 0 && !pieces.empty()) {
      const auto which = pieces.begin() + static_cast<std::ptrdiff_t>(random() % pieces.size());
      region.free(which->first);
      pieces.erase(which);
      continue;
    }
    const std::size_t bytes = 1 + random() % 9000;
    auto* const at = static_cast<std::byte*>(region.alloc(bytes));
    ASSERT_NE(at, nullptr);
    std::fill_n(at, bytes, std::byte{7});
    for (const auto& [other, size] : pieces) ASSERT_TRUE(at + bytes <= other || other + size <= at);
    within += at >= start && at < start + kBytes;
    pieces.emplace_back(at, bytes);
  }
  EXPECT_GT(within, 500u);
  for (const auto& [at, bytes] : pieces) region.free(at);
  EXPECT_EQ(region.alloc(kBytes), start) << "all gaps are one again";
  region.free(start);
}

}  // namespace
}  // namespace troupe
