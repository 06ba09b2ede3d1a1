// Every reader with every type of value: what is of another type is nothing, and nothing throws.
#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace troupe {
namespace {

const Json kAll = {nullptr, true, -3, 7u, 2.5, "text", {1, 2}, {{"a", nullptr}, {"b", "x"}}};

TEST(JsonReaders, AreTotal) {
  int texts = 0, booleans = 0, numbers = 0, integers = 0, lists = 0, objects = 0;
  for (const Json& value : json::items(kAll)) {
    Json own = value;
    texts += json::text(value) != nullptr ? 1 : 0;
    booleans += json::boolean(value).has_value() ? 1 : 0;
    numbers += json::number(value).has_value() ? 1 : 0;
    integers += json::integer(value).has_value() ? 1 : 0;
    lists += json::items(value).empty() ? 0 : 1;
    objects += json::members(value).empty() ? 0 : 1;
    EXPECT_EQ(json::object(own) != nullptr, value.is_object());
    EXPECT_EQ(json::member(value, "b") != nullptr, value.is_object());
    EXPECT_EQ(json::given(value, "a"), nullptr);
    json::drop(own, "b");
    EXPECT_FALSE(json::has(own, "b"));
    json::put(own, "c", 1);
    EXPECT_EQ(json::integer(*json::member(own, "c")), 1);
  }
  EXPECT_EQ(std::tuple(texts, booleans, numbers, integers, lists, objects), std::tuple(1, 1, 3, 2, 1, 1));
  EXPECT_EQ(json::member(nullptr, "a"), nullptr);
  EXPECT_EQ(json::text(nullptr), nullptr);
  EXPECT_FALSE(json::is_true(nullptr));
  EXPECT_TRUE(json::is(json::member(kAll.back(), "b"), "x"));
}

TEST(JsonReaders, NumbersAreNeverNarrowed) {
  EXPECT_EQ(json::integer(Json(3.0)), 3);
  EXPECT_EQ(json::integer(Json(3.5)), std::nullopt);
  EXPECT_EQ(json::integer(Json(1e300)), std::nullopt);
  EXPECT_EQ(json::integer(Json(std::numeric_limits<std::uint64_t>::max())), std::nullopt);
  EXPECT_EQ(json::integer(Json(std::numeric_limits<std::int64_t>::min())),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(json::number(Json(std::numeric_limits<std::uint64_t>::max())), 18446744073709551615.0);
}

TEST(JsonReaders, ParseAndPrintAnything) {
  EXPECT_EQ(json::parse("{"), std::nullopt);
  EXPECT_EQ(json::parse("1e999"), std::nullopt);
  EXPECT_EQ(json::to_text(*json::parse(R"({"b":1,"a":[]})")), R"({"b":1,"a":[]})");
  EXPECT_EQ(json::to_text(Json("a\xFF")), "\"a\uFFFD\"");
}

}  // namespace
}  // namespace troupe
