// What requests get that say nothing: of the model, of the server, of other fields.
#include <gtest/gtest.h>

#include "http/api/openai_request.h"

namespace troupe::http {
namespace {

const config::LimitOptions kServerLimits;
const ModelFacts kAnyModel;
const RequestRules kServerRules{kServerLimits, kAnyModel};

Request request_of(Result<Parsed>&& parsed) {
  EXPECT_TRUE(parsed.ok()) << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}

/// Of a body with further members, given as the inside of an object.
Request chat_of(const std::string& more, const RequestRules& rules) {
  const std::string comma = more.empty() ? "" : ",";
  return request_of(
      parse_chat(R"({"messages":[{"role":"user","content":"hi"}])" + comma + more + "}", rules));
}

Request completion_of(const std::string& more, const RequestRules& rules) {
  const std::string comma = more.empty() ? "" : ",";
  return request_of(parse_completion(R"({"prompt":["a","b"])" + comma + more + "}", rules));
}

TEST(RequestDefaults, TheRequestGoesBeforeTheModel) {
  const ModelFacts model{.sampling = {.temperature = 0.8f, .top_k = 40, .repetition_penalty = 1.2f}};
  const auto sampling = [&](const std::string& more) {
    return chat_of(more, {kServerLimits, model}).generation.sampling;
  };
  EXPECT_EQ(sampling("").temperature, 0.8f);
  EXPECT_EQ(sampling("").top_k, 40);
  EXPECT_EQ(sampling(R"("temperature":0.3)").temperature, 0.3f);
  EXPECT_EQ(sampling(R"("top_k":0)").top_k, 0);
  EXPECT_EQ(sampling(R"("top_k":0)").repetition_penalty, 1.2f);
}

TEST(RequestDefaults, AZeroTopPOrTemperatureIsGreedy) {
  for (const char* more : {R"("top_p":0)", R"("temperature":0,"top_p":0.5)", R"("temperature":0.000001)"}) {
    const wire::Sampling s = chat_of(more, kServerRules).generation.sampling;
    EXPECT_EQ(s.temperature, 0.0f) << more;
    EXPECT_EQ(s.top_p, 1.0f) << more;
  }
}

TEST(RequestDefaults, SeedsComeFromTheRequestOrTheServerOrAreDrawn) {
  const auto seed = [](const std::string& more, std::uint64_t of_server) {
    const ModelFacts model{.sampling = {.seed = of_server}};
    return chat_of(more, {kServerLimits, model, "x", 77}).generation.sampling.seed;
  };
  EXPECT_EQ(seed("", 0), 77u);
  EXPECT_EQ(seed("", 5), 5u);
  EXPECT_EQ(seed(R"("seed":-1)", 5), ~std::uint64_t{0});
  EXPECT_EQ(seed(R"("seed":0)", 5), 0u);
}

TEST(RequestDefaults, EveryRequestHasATimeoutAndNoneALongerOneThanTheServers) {
  config::LimitOptions limits;
  limits.request_timeout_s = 60;
  const RequestRules rules{limits, kAnyModel, "x", 0, 1000};
  const auto timeout_ns = [&](const std::string& more) { return completion_of(more, rules).timeout_ns; };
  constexpr std::int64_t kSecond = 1'000'000'000;
  EXPECT_EQ(timeout_ns(""), 60 * kSecond);
  EXPECT_EQ(timeout_ns(R"("timeout":1.5)"), kSecond * 3 / 2);
  EXPECT_EQ(timeout_ns(R"("timeout":3600)"), 60 * kSecond);
  const Request detokenize = parse_detokenize(R"({"tokens":[1]})", rules)->request;
  EXPECT_EQ(detokenize.timeout_ns, 60 * kSecond);
  EXPECT_EQ(detokenize.answer.created_s, 1000);
}

TEST(RequestDefaults, AnEchoWithLogprobsAsksForThePromptsToo) {
  const auto of_prompt = [](const std::string& more) {
    return completion_of(more, kServerRules).generation.sampling.prompt_logprobs;
  };
  EXPECT_EQ(of_prompt(R"("echo":true,"logprobs":3)"), 3);
  EXPECT_EQ(of_prompt(R"("echo":true,"logprobs":3,"prompt_logprobs":5)"), 5);
  EXPECT_EQ(of_prompt(R"("echo":true)"), -1);
  EXPECT_EQ(of_prompt(R"("logprobs":3)"), -1);
}

}  // namespace
}  // namespace troupe::http
