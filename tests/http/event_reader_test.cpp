#include "http/client/event_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace troupe::http {
namespace {

const std::string kEvents =
    "data: {\"a\":1}\n\n: ping\r\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n";
const std::vector<std::string> kData = {"{\"a\":1}", "two\nlines", "[DONE]"};

TEST(EventReader, ReadsAStreamCutAtAnyTwoPlaces) {
  for (std::size_t first = 0; first <= kEvents.size(); ++first) {
    for (std::size_t second = first; second <= kEvents.size(); ++second) {
      std::vector<std::string> data;
      EventReader events([&](std::string_view event) { return data.emplace_back(event), true; });
      EXPECT_TRUE(events.feed(std::string_view(kEvents).substr(0, first)));
      EXPECT_TRUE(events.feed(std::string_view(kEvents).substr(first, second - first)));
      EXPECT_TRUE(events.feed(std::string_view(kEvents).substr(second)));
      ASSERT_EQ(data, kData) << first << " " << second;
      EXPECT_EQ(events.held(), 0u);
    }
  }
}

TEST(EventReader, StopsWhenNoMoreIsWanted) {
  int seen = 0;
  EventReader events([&](std::string_view) { return ++seen < 2; });
  EXPECT_TRUE(events.feed("data: 1\n\nda"));
  EXPECT_FALSE(events.feed("ta: 2\n\ndata: 3\n\n"));
  EXPECT_FALSE(events.feed("data: 4\n\n"));
  EXPECT_EQ(seen, 2);
}

TEST(EventReader, KnowsHowMuchItHolds) {
  EventReader events([](std::string_view) { return true; });
  events.feed("data: " + std::string(1000, 'x') + "\ndata: " + std::string(500, 'y'));
  EXPECT_GE(events.held(), 1500u);
  events.feed("\n\n");
  EXPECT_EQ(events.held(), 0u);
}

}  // namespace
}  // namespace troupe::http
