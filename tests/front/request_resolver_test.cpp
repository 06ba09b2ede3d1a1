#include "actors/gateway/request_resolver.h"

#include <gtest/gtest.h>

#include <functional>

namespace troupe {
namespace {

http::Call chat(http::SamplingRequest sampling = {}) {
  http::ChatRequest request;
  request.id = "chatcmpl-1";
  request.conversation.messages = http::Json::parse(R"([{"role":"user","content":"hi"}])");
  request.sampling = std::move(sampling);
  http::Call call;
  call.exchange = {2, 9};
  call.request_id = "r1";
  call.body = request;
  return call;
}

Generation resolved(const http::SamplingRequest& sampling, const model::GenerationConfig& own = {}) {
  const RequestResolver resolver({"served", own, 0});
  http::Call call = chat(sampling);
  auto ask = resolver.resolve(call, 77, 1000);
  EXPECT_TRUE(ask.ok());
  return ask->generation;
}

TEST(RequestResolver, TheRequestGoesBeforeTheCheckpointBeforeTheDefault) {
  model::GenerationConfig own;
  own.temperature = 0.8;
  own.top_k = 40;
  http::SamplingRequest sampling;
  EXPECT_FLOAT_EQ(resolved(sampling).sampling.temperature, 1.0f);
  EXPECT_FLOAT_EQ(resolved(sampling, own).sampling.temperature, 0.8f);
  EXPECT_EQ(resolved(sampling, own).sampling.top_k, 40);
  sampling.temperature = 0.3;
  sampling.top_k = 0;
  EXPECT_FLOAT_EQ(resolved(sampling, own).sampling.temperature, 0.3f);
  EXPECT_EQ(resolved(sampling, own).sampling.top_k, 0);
}

TEST(RequestResolver, EveryRequestHasATimeoutAndNoneALongerOneThanTheServers) {
  ResolverOptions options{"m", {}, 0};
  options.timeout = std::chrono::seconds(60);
  const auto timeout_ns = [&](http::RequestBody body) {
    http::Call call;
    call.body = std::move(body);
    return RequestResolver(options).resolve(call, 1, 1)->timeout_ns;
  };
  const auto completion = [](std::optional<double> timeout) {
    http::CompletionRequest request{.prompts = {std::string("a")}};
    request.sampling.timeout = timeout;
    return request;
  };
  constexpr std::int64_t kSecond = 1'000'000'000;
  EXPECT_EQ(timeout_ns(completion(std::nullopt)), 60 * kSecond);
  EXPECT_EQ(timeout_ns(completion(1.5)), kSecond * 3 / 2);
  EXPECT_EQ(timeout_ns(completion(3600)), 60 * kSecond);
  EXPECT_EQ(timeout_ns(http::DetokenizeRequest{}), 60 * kSecond);
}

TEST(RequestResolver, AZeroTopPOrTemperatureIsGreedy) {
  http::SamplingRequest sampling;
  sampling.top_p = 0.0;
  EXPECT_EQ(resolved(sampling).sampling.temperature, 0.0f);
  EXPECT_EQ(resolved(sampling).sampling.top_p, 1.0f);
  sampling = {};
  sampling.temperature = 0.0;
  EXPECT_EQ(resolved(sampling).sampling.temperature, 0.0f);
}

TEST(RequestResolver, SeedsComeFromTheRequestOrAreDrawn) {
  http::SamplingRequest sampling;
  EXPECT_EQ(resolved(sampling).sampling.seed, 77u);
  sampling.seed = -1;
  EXPECT_EQ(resolved(sampling).sampling.seed, ~std::uint64_t{0});
}

TEST(RequestResolver, NamesTheServedModelWhenTheRequestDidNot) {
  const RequestResolver resolver({"served", {}, 0});
  http::Call call = chat();
  const auto ask = resolver.resolve(call, 1, 1000);
  ASSERT_TRUE(ask.ok());
  EXPECT_EQ(ask->answer.model, "served");
  EXPECT_EQ(ask->io, 2u);
  EXPECT_EQ(ask->exchange, 9u);
  EXPECT_EQ(ask->answer.created_s, 1000);
  EXPECT_EQ(ask->generation.max_tokens, -1);
}

TEST(RequestResolver, ATemplateThatLeavesToolsOutIsNotSilentAboutIt) {
  const auto resolved = [](bool reads, const std::function<void(http::ChatRequest&)>& change) {
    http::Call call = chat();
    auto& request = std::get<http::ChatRequest>(call.body);
    request.conversation.tools = http::Json::parse(R"([{"type":"function","function":{"name":"f"}}])");
    request.tools.choice = http::ToolRules::Choice::automatic;
    change(request);
    ResolverOptions options{"served", {}, 0};
    options.template_reads_tools = reads;
    return RequestResolver(options).resolve(call, 1, 1).status();
  };
  const auto nothing = [](http::ChatRequest&) {};
  EXPECT_TRUE(resolved(true, nothing).ok());
  EXPECT_EQ(resolved(false, nothing).param, "tools");
  EXPECT_EQ(resolved(false, [](http::ChatRequest& request) { request.tools.legacy = true; }).param,
            "functions");
  EXPECT_TRUE(resolved(false, [](http::ChatRequest& request) { request.conversation.tools = nullptr; }).ok());
  EXPECT_TRUE(resolved(false, [](http::ChatRequest& request) { request.prompt_token_ids = {1}; }).ok());
}

TEST(RequestResolver, AnEchoWithLogprobsAsksForThePromptsToo) {
  http::CompletionRequest request;
  request.prompts = {std::string("a"), std::string("b")};
  request.echo = true;
  request.sampling.logprobs = 3;
  http::Call call;
  call.body = request;
  const auto ask = RequestResolver({"m", {}, 0}).resolve(call, 1, 1);
  ASSERT_TRUE(ask.ok());
  EXPECT_EQ(ask->generation.sampling.prompt_logprobs, 3);
  EXPECT_EQ(ask->source.texts.size(), 2u);
}

}  // namespace
}  // namespace troupe
