// The requests of a load test, and the figures computed from the answers.
#include "cli/bench/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace troupe::bench {
namespace {

using http::LoadAnswer;
using http::LoadRequest;
using http::LoadRun;
using nlohmann::json;

std::vector<json> bodies(const LoadPlan& plan) {
  std::vector<json> out;
  for (const LoadRequest& request : make_requests(plan)) out.push_back(json::parse(request.body));
  return out;
}

TEST(LoadPlan, TheSamePlanIsTheSameLoad) {
  const LoadPlan plan{.requests = 20, .rate = 5, .spread = 0.5, .prefix = 7, .prefixes = 3};
  const auto once = make_requests(plan), again = make_requests(plan);
  ASSERT_EQ(once.size(), 20u);
  ASSERT_EQ(again.size(), 20u);
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].body, again[i].body);
    EXPECT_EQ(once[i].after_s, again[i].after_s);
  }
  LoadPlan other = plan;
  other.seed = 2;
  EXPECT_NE(make_requests(other)[0].body, once[0].body);
}

TEST(LoadPlan, RequestsExactNumbersOfTokens) {
  const auto all = bodies({.requests = 30, .input = 40, .output = 12, .vocab = 60, .first_id = 50});
  for (const json& body : all) {
    EXPECT_EQ(body.at("prompt").size(), 40u);
    EXPECT_EQ(body.at("max_tokens"), 12);
    EXPECT_EQ(body.at("min_tokens"), 12);
    EXPECT_EQ(body.at("ignore_eos"), true);
    EXPECT_EQ(body.at("stream"), true);
    EXPECT_EQ(body.at("stream_options").at("include_usage"), true);
    for (const int id : body.at("prompt")) {
      EXPECT_GE(id, 50);
      EXPECT_LT(id, 60);
    }
  }
  EXPECT_NE(all[0].at("prompt"), all[1].at("prompt"));
}

TEST(LoadPlan, LengthsStayWithinTheSpreadAndUseAllOfIt) {
  const auto all = bodies({.requests = 400, .input = 100, .output = 40, .spread = 0.25});
  std::vector<std::size_t> inputs;
  std::vector<int> outputs;
  for (const json& body : all) {
    inputs.push_back(body.at("prompt").size());
    outputs.push_back(body.at("max_tokens"));
  }
  const auto [shortest, longest] = std::minmax_element(inputs.begin(), inputs.end());
  EXPECT_GE(*shortest, 75u);
  EXPECT_LT(*shortest, 80u);
  EXPECT_LE(*longest, 125u);
  EXPECT_GT(*longest, 120u);
  const auto [least, most] = std::minmax_element(outputs.begin(), outputs.end());
  EXPECT_GE(*least, 30);
  EXPECT_LT(*least, 33);
  EXPECT_LE(*most, 50);
  EXPECT_GT(*most, 47);
}

TEST(LoadPlan, AFullSpreadLeavesAtLeastOneToken) {
  for (const json& body : bodies({.requests = 200, .input = 1, .output = 1, .spread = 1})) {
    EXPECT_GE(body.at("prompt").size(), 1u);
    EXPECT_GE(body.at("max_tokens"), 1);
  }
}

TEST(LoadPlan, PromptsShareTheirPrefixes) {
  constexpr std::size_t kPrefix = 16;
  std::map<std::vector<int>, int> beginnings;
  std::set<std::vector<int>> prompts;
  const auto all = bodies({.requests = 60, .input = 20, .prefix = kPrefix, .prefixes = 3});
  for (const json& body : all) {
    const auto ids = body.at("prompt").get<std::vector<int>>();
    ASSERT_EQ(ids.size(), 20u);
    ++beginnings[{ids.begin(), ids.begin() + kPrefix}];
    prompts.insert(ids);
  }
  EXPECT_EQ(beginnings.size(), 3u);
  for (const auto& [ids, count] : beginnings) EXPECT_GT(count, 8);
  EXPECT_EQ(prompts.size(), 60u);
}

TEST(LoadPlan, APromptHasAtLeastOneTokenAfterItsPrefix) {
  for (const json& body : bodies({.requests = 5, .input = 4, .prefix = 10})) {
    EXPECT_EQ(body.at("prompt").size(), 11u);
  }
}

TEST(LoadPlan, AnOpenLoopKeepsItsRate) {
  const auto requests = make_requests({.requests = 2000, .rate = 50});
  EXPECT_EQ(requests.front().after_s, 0);
  int short_gaps = 0;
  for (std::size_t i = 1; i < requests.size(); ++i) {
    const double gap = requests[i].after_s - requests[i - 1].after_s;
    EXPECT_GE(gap, 0);
    short_gaps += gap < 0.02 * 0.6931;  // the median of an exponential distribution is its mean × ln 2
  }
  EXPECT_NEAR(requests.back().after_s, 1999 / 50.0, 4);  // 4.5 standard deviations
  EXPECT_NEAR(short_gaps, 1000, 100);
  for (const LoadRequest& request : make_requests({.requests = 5})) EXPECT_EQ(request.after_s, 0);
}

TEST(LoadPlan, OnlyAClosedLoopLimitsConcurrencyByDefault) {
  EXPECT_EQ(concurrency_of({}), 16);
  EXPECT_EQ(concurrency_of({.rate = 3}), 0);
  EXPECT_EQ(concurrency_of({.concurrency = 4}), 4);
  EXPECT_EQ(concurrency_of({.concurrency = 4, .rate = 3}), 4);
}

constexpr std::int64_t kMs = 1'000'000;

// Two requests that were answered, one that failed, one whose answer was empty.
LoadRun run() {
  LoadRun run;
  run.seconds = 2;
  run.answers.resize(4);
  run.answers[0] = {.ok = true,
                    .status = 200,
                    .sent_ns = 0,
                    .first_ns = 10 * kMs,
                    .last_ns = 50 * kMs,
                    .end_ns = 60 * kMs,
                    .events = 3,
                    .tokens = 5,
                    .gaps_ms = {30, 10}};
  run.answers[1] = {.ok = true,
                    .status = 200,
                    .sent_ns = 100 * kMs,
                    .first_ns = 130 * kMs,
                    .last_ns = 130 * kMs,
                    .end_ns = 140 * kMs,
                    .events = 1,
                    .tokens = 1,
                    .gaps_ms = {}};
  run.answers[2] = {.ok = false,
                    .status = 500,
                    .sent_ns = 0,
                    .first_ns = 900 * kMs,
                    .last_ns = 990 * kMs,
                    .end_ns = 0,
                    .events = 2,
                    .tokens = 70,
                    .gaps_ms = {90}};
  run.answers[3] = {.ok = true,
                    .status = 200,
                    .sent_ns = 0,
                    .first_ns = 0,
                    .last_ns = 0,
                    .end_ns = 200 * kMs,
                    .events = 0,
                    .tokens = 2,
                    .gaps_ms = {}};
  return run;
}

TEST(LoadSummary, CountsWhatWasAnswered) {
  const json out = json::parse(load_summary({.requests = 4}, run(), true));
  EXPECT_EQ(out.at("requests"), 4);
  EXPECT_EQ(out.at("failed"), 1);
  EXPECT_EQ(out.at("output_tokens"), 8);
  EXPECT_DOUBLE_EQ(out.at("output_tok_s"), 4);
  EXPECT_DOUBLE_EQ(out.at("requests_s"), 1.5);
  EXPECT_DOUBLE_EQ(out.at("ttft_ms").at("mean"), 20);
  EXPECT_DOUBLE_EQ(out.at("ttft_ms").at("p99"), 30);
  EXPECT_DOUBLE_EQ(out.at("itl_ms").at("mean"), 20);
  EXPECT_DOUBLE_EQ(out.at("itl_ms").at("p99"), 30);
  EXPECT_DOUBLE_EQ(out.at("tpot_ms").at("p50"), 10);  // 40 ms for the four tokens after the first
  EXPECT_DOUBLE_EQ(out.at("e2e_ms").at("p50"), 60);
  EXPECT_DOUBLE_EQ(out.at("e2e_ms").at("mean"), 100);
}

TEST(LoadSummary, TextHasTheSameNumbers) {
  const std::string text = load_summary({.requests = 4}, run(), false);
  EXPECT_NE(text.find("4 requests, 1 failed, 2.00 s; 8 output tokens, 4.0 tok/s, 1.50 requests/s"), text.npos)
      << text;
  for (const char* name : {"TTFT, ms", "ITL, ms", "TPOT, ms", "end to end, ms"}) {
    EXPECT_NE(text.find(name), text.npos) << text;
  }
}

TEST(LoadSummary, WithoutAnswersAllFiguresAreZero) {
  const json out = json::parse(load_summary({.requests = 2}, {.answers = std::vector<LoadAnswer>(2)}, true));
  EXPECT_EQ(out.at("failed"), 2);
  EXPECT_EQ(out.at("output_tok_s"), 0);
  EXPECT_EQ(out.at("ttft_ms").at("p99"), 0);
}

}  // namespace
}  // namespace troupe::bench
