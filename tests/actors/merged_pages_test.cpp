// Pages that several models answer together.
#include "actors/gateway/merged_pages.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(MergedMetrics, HaveEachFamilyOnce) {
  const std::string a =
      "# HELP x Requests.\n# TYPE x counter\nx{model_name=\"a\"} 1\n# HELP y Times.\n# TYPE y histogram\n"
      "y_bucket{le=\"1\",model_name=\"a\"} 2\ny_sum{model_name=\"a\"} 3\n";
  const std::string b =
      "# HELP y Times.\n# TYPE y histogram\ny_sum{model_name=\"b\"} 4\n"
      "# HELP z Z.\n# TYPE z gauge\nz{model_name=\"b\"} 5\n";
  EXPECT_EQ(merged_metrics({a, b}),
            "# HELP x Requests.\n# TYPE x counter\nx{model_name=\"a\"} 1\n"
            "# HELP y Times.\n# TYPE y histogram\n"
            "y_bucket{le=\"1\",model_name=\"a\"} 2\ny_sum{model_name=\"a\"} 3\n"
            "y_sum{model_name=\"b\"} 4\n"
            "# HELP z Z.\n# TYPE z gauge\nz{model_name=\"b\"} 5\n");
  EXPECT_EQ(merged_metrics({a}), a);
}

class MergedPagesTest : public ::testing::Test {
 protected:
  static std::vector<http::Output> answer(std::uint64_t id, const std::string& body,
                                          std::uint16_t status = 200) {
    http::Output output{.exchange_id = id, .kind = http::Output::Kind::whole, .status = status};
    output.body = body;
    std::vector<http::Output> all;
    all.push_back(std::move(output));
    return all;
  }

  std::vector<std::pair<std::uint32_t, http::Output>> delivered_;
  MergedPages pages_{2, [this](std::uint32_t io, std::vector<http::Output>&& outputs) {
                       for (http::Output& output : outputs) delivered_.emplace_back(io, std::move(output));
                     }};
};

TEST_F(MergedPagesTest, TheLastAnswerCompletesAPage) {
  const auto first = pages_.begin({3, 70}, http::InfoRequest::Kind::reset_prefix_cache);
  const auto second = pages_.begin({4, 80}, http::InfoRequest::Kind::reset_prefix_cache);
  pages_.take(0, answer(first, R"({"forgotten_blocks":2})"));
  pages_.take(0, answer(first, R"({"forgotten_blocks":9})"));  // a model answers once
  pages_.take(1, answer(second, R"({"forgotten_blocks":1})"));
  EXPECT_TRUE(delivered_.empty());
  pages_.take(1, answer(first, R"({"forgotten_blocks":5})"));
  ASSERT_EQ(delivered_.size(), 1u);
  EXPECT_EQ(delivered_[0].first, 3u);
  EXPECT_EQ(delivered_[0].second.exchange_id, 70u);
  EXPECT_EQ(delivered_[0].second.body, R"({"forgotten_blocks":7})");
  pages_.take(0, answer(second, "no", 503));
  ASSERT_EQ(delivered_.size(), 2u);
  EXPECT_EQ(delivered_[1].second.status, 503);
}

TEST_F(MergedPagesTest, MetricsOfAModelThatIsAwayAreLeftOut) {
  const auto page = pages_.begin({0, 1}, http::InfoRequest::Kind::metrics);
  pages_.take(0, answer(page, "no", 503));
  pages_.take(1, answer(page, "# HELP x X.\n# TYPE x gauge\nx 1\n"));
  ASSERT_EQ(delivered_.size(), 1u);
  EXPECT_EQ(delivered_[0].second.status, 200);
  EXPECT_NE(delivered_[0].second.body.find("x 1"), std::string::npos);
}

}  // namespace
}  // namespace troupe
