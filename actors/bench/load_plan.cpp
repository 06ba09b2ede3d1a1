#include "actors/bench/load_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

namespace troupe::bench {
namespace {

struct Distribution {
  std::vector<double> values;  // milliseconds

  nlohmann::json json() const {
    double sum = 0;
    for (const double v : values) sum += v;
    return {{"mean", values.empty() ? 0 : sum / static_cast<double>(values.size())},
            {"p50", http::percentile(values, 50)},
            {"p90", http::percentile(values, 90)},
            {"p99", http::percentile(values, 99)}};
  }
};

std::string line(const char* name, const Distribution& d) {
  const auto j = d.json();
  char text[160];
  std::snprintf(text, sizeof text, "%-22s mean %10.2f   p50 %10.2f   p90 %10.2f   p99 %10.2f\n", name,
                j["mean"].get<double>(), j["p50"].get<double>(), j["p90"].get<double>(),
                j["p99"].get<double>());
  return text;
}

double ms(std::int64_t from_ns, std::int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-6; }

}  // namespace

int concurrency_of(const LoadPlan& plan) {
  constexpr int kClosedLoop = 16;
  return plan.concurrency > 0 || plan.rate > 0 ? plan.concurrency : kClosedLoop;
}

std::vector<http::LoadRequest> make_requests(const LoadPlan& plan) {
  std::mt19937_64 random(plan.seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto length = [&](int average) {
    return std::max(1, static_cast<int>(std::lround(average * (1 + plan.spread * (2 * uniform() - 1)))));
  };
  const auto id = [&] {
    return plan.first_id +
           static_cast<int>(random() % static_cast<std::uint64_t>(std::max(1, plan.vocab - plan.first_id)));
  };
  std::vector<std::vector<int>> beginnings(static_cast<std::size_t>(std::max(1, plan.prefixes)));
  for (auto& beginning : beginnings) {
    for (int i = 0; i < plan.prefix; ++i) beginning.push_back(id());
  }
  std::vector<http::LoadRequest> requests;
  double at = 0;
  for (int r = 0; r < plan.requests; ++r) {
    std::vector<int> prompt = beginnings[random() % beginnings.size()];
    const auto input = static_cast<std::size_t>(std::max(length(plan.input), plan.prefix + 1));
    while (prompt.size() < input) prompt.push_back(id());
    const int output = length(plan.output);
    const nlohmann::json body = {{"prompt", prompt},
                                 {"max_tokens", output},
                                 {"min_tokens", output},
                                 {"ignore_eos", true},
                                 {"stream", true},
                                 {"temperature", 0},
                                 {"stream_options", {{"include_usage", true}}}};
    requests.push_back({body.dump(), at});
    if (plan.rate > 0) at += -std::log(1 - uniform()) / plan.rate;
  }
  return requests;
}

std::string load_summary(const LoadPlan& plan, const http::LoadRun& run, bool json) {
  Distribution first, gap, per_token, whole;
  std::int64_t tokens = 0;
  int ok = 0;
  for (const http::LoadAnswer& a : run.answers) {
    if (!a.ok) continue;
    ++ok;
    tokens += a.tokens;
    whole.values.push_back(ms(a.sent_ns, a.end_ns));
    if (a.events == 0) continue;
    first.values.push_back(ms(a.sent_ns, a.first_ns));
    gap.values.insert(gap.values.end(), a.gaps_ms.begin(), a.gaps_ms.end());
    if (a.tokens > 1) per_token.values.push_back(ms(a.first_ns, a.last_ns) / (a.tokens - 1));
  }
  const double rate = run.seconds > 0 ? static_cast<double>(tokens) / run.seconds : 0;
  if (json) {
    const nlohmann::json out = {{"bench", "load"},
                                {"requests", plan.requests},
                                {"failed", plan.requests - ok},
                                {"seconds", run.seconds},
                                {"output_tokens", tokens},
                                {"output_tok_s", rate},
                                {"requests_s", run.seconds > 0 ? ok / run.seconds : 0},
                                {"ttft_ms", first.json()},
                                {"itl_ms", gap.json()},
                                {"tpot_ms", per_token.json()},
                                {"e2e_ms", whole.json()}};
    return out.dump() + "\n";
  }
  char head[200];
  std::snprintf(head, sizeof head,
                "%d requests, %d failed, %.2f s; %lld output tokens, %.1f tok/s, %.2f requests/s\n",
                plan.requests, plan.requests - ok, run.seconds, static_cast<long long>(tokens), rate,
                run.seconds > 0 ? ok / run.seconds : 0);
  return head + line("TTFT, ms", first) + line("ITL, ms", gap) + line("TPOT, ms", per_token) +
         line("end to end, ms", whole);
}

}  // namespace troupe::bench
