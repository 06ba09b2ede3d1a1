#include "actors/gateway/http_side.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

class HttpSideTest : public ::testing::Test {
 protected:
  void answered(std::string_view method, std::string_view path, std::uint16_t status, bool failed = false) {
    side.answered({.request_id = "r", .method = method, .target = path, .status = status, .failed = failed});
  }

  std::vector<HttpStats> counted;
  std::vector<http::Output> delivered;
  GatewayPorts ports{[](Ask&&) {}, [](Withdraw) {},
                     [this](HttpStats&& stats) { counted.push_back(std::move(stats)); },
                     [this](std::uint32_t, std::vector<http::Output>&& outputs) {
                       for (auto& output : outputs) delivered.push_back(std::move(output));
                     }};
  HttpSide side{
      ports, RequestResolver({"m", {}, 0}), {{"m", "dir", 1, 64}}, std::make_shared<HealthCell>(), Log()};
};

// The supervisor forgives deaths for what was served: a probe or a stream that a death broke off is no proof
// of health.
TEST_F(HttpSideTest, OnlyGenerationThatWentWellCountsAsServed) {
  answered("POST", "/ping", 200);
  answered("POST", "/tokenize", 200);
  answered("GET", "/v1/models", 200);
  answered("POST", "/v1/chat/completions", 400);
  answered("POST", "/v1/chat/completions", 499);
  answered("POST", "/v1/completions", 200, /*failed=*/true);
  EXPECT_EQ(side.served(), 0u);
  answered("POST", "/v1/chat/completions", 200);
  answered("POST", "/v1/completions", 200);
  EXPECT_EQ(side.served(), 2u);
  EXPECT_EQ(counted.size(), 8u);
}

TEST_F(HttpSideTest, AnswersTheModelsItself) {
  http::Call call;
  call.exchange = {3, 9};
  call.body = http::InfoRequest{http::InfoRequest::Kind::model, "m"};
  side.submit(http::Call(call));
  call.body = http::InfoRequest{http::InfoRequest::Kind::model, "other"};
  side.submit(http::Call(call));
  ASSERT_EQ(delivered.size(), 2u);
  EXPECT_EQ(delivered[0].exchange_id, 9u);
  EXPECT_EQ(delivered[0].status, 200);
  EXPECT_NE(delivered[0].body.find("\"id\":\"m\""), std::string::npos);
  EXPECT_EQ(delivered[1].exchange_id, 9u);
  EXPECT_EQ(delivered[1].status, 404);
}

}  // namespace
}  // namespace troupe
