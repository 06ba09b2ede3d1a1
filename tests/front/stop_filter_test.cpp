#include "actors/session/stop_filter.h"

#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

TEST(StopFilter, PassesTextThroughWithoutStops) {
  StopFilter filter({}, false);
  EXPECT_EQ(filter.push("abc"), "abc");
  EXPECT_EQ(filter.flush(), "");
}

TEST(StopFilter, CutsAcrossPieces) {
  StopFilter filter({"STOP"}, false);
  EXPECT_EQ(filter.push("one S"), "one ");
  EXPECT_EQ(filter.push("TO"), "");
  EXPECT_EQ(filter.push("P two"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("three"), "");
  EXPECT_EQ(filter.flush(), "");
}

TEST(StopFilter, KeepsTheStopStringWhenAsked) {
  StopFilter filter({"."}, true);
  EXPECT_EQ(filter.push("One. Two."), "One.");
}

TEST(StopFilter, ReleasesWhatCannotBecomeAStop) {
  StopFilter filter({"aab"}, false);
  EXPECT_EQ(filter.push("aa"), "");
  EXPECT_EQ(filter.push("a"), "a");  // "aa" may still become "aab"
  EXPECT_EQ(filter.push("c"), "aac");
  EXPECT_EQ(filter.push("a"), "");
  EXPECT_EQ(filter.flush(), "a");
}

TEST(StopFilter, TheEarliestWinsThenTheShortest) {
  StopFilter early({"cd", "bcde"}, false);
  EXPECT_EQ(early.push("abcdef"), "a");
  StopFilter shorter({"bcd", "b"}, true);
  EXPECT_EQ(shorter.push("abcd"), "ab");
}

TEST(StopFilter, WhatMayNotStopIsText) {
  StopFilter filter({"END", "N"}, false);
  EXPECT_EQ(filter.push("one END two E", false), "one END two ");
  EXPECT_EQ(filter.push("N", false), "");  // still the beginning of END, whose last letter may come later
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push("D", true), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.met(), "END");

  StopFilter both({"ab"}, false);
  EXPECT_EQ(both.push("xab", false), "xab");
  EXPECT_EQ(both.push("yab", true), "y");

  StopFilter held({"aab"}, false);
  EXPECT_EQ(held.push("aa", false), "");
  EXPECT_EQ(held.flush(), "aa");
}

// Whatever the cuts between pieces, the text is the one that a search in the whole would give.
TEST(StopFilter, DoesNotDependOnTheCuts) {
  std::mt19937 random(7);
  const auto letters = [&](int length) {
    std::string s;
    for (int i = 0; i < length; ++i) s += static_cast<char>('a' + random() % 2);
    return s;
  };
  for (int round = 0; round < 5000; ++round) {
    const std::string text = letters(24);
    const std::vector<std::string> stops{letters(3 + static_cast<int>(random() % 3)), letters(4)};
    std::size_t first = std::string::npos;
    for (const auto& stop : stops) first = std::min(first, text.find(stop));
    const std::string expected = first == std::string::npos ? text : text.substr(0, first);

    StopFilter filter(stops, false);
    std::string got;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 5;
      got += filter.push(text.substr(at, n));
      at += n;
    }
    got += filter.flush();
    ASSERT_EQ(got, expected) << text << " | " << stops[0] << " | " << stops[1];
  }
}

}  // namespace
}  // namespace troupe
