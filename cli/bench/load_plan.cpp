#include "cli/bench/load_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

namespace troupe::bench {
namespace {

struct Distribution {
  std::vector<double> values;  // milliseconds

  double mean() const {
    double sum = 0;
    for (const double v : values) sum += v;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
  }
  double at(double p) const { return http::percentile(values, p); }

  nlohmann::json json() const {
    return {{"mean", mean()}, {"p50", at(50)}, {"p90", at(90)}, {"p99", at(99)}};
  }
  std::string line(const char* name) const {
    char text[160];
    std::snprintf(text, sizeof text, "%-22s mean %10.2f   p50 %10.2f   p90 %10.2f   p99 %10.2f\n", name,
                  mean(), at(50), at(90), at(99));
    return text;
  }
};

double ms(std::int64_t from_ns, std::int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-6; }

/// What the answers that are ok say.
struct Totals {
  int ok = 0;
  std::int64_t tokens = 0;
  Distribution first, gap, per_token, whole;
};

Totals totals_of(const http::LoadRun& run) {
  Totals t;
  for (const http::LoadAnswer& a : run.answers) {
    if (!a.ok) continue;
    ++t.ok;
    t.tokens += a.tokens;
    t.whole.values.push_back(ms(a.sent_ns, a.end_ns));
    if (a.events == 0) continue;
    t.first.values.push_back(ms(a.sent_ns, a.first_ns));
    t.gap.values.insert(t.gap.values.end(), a.gaps_ms.begin(), a.gaps_ms.end());
    if (a.tokens > 1) t.per_token.values.push_back(ms(a.first_ns, a.last_ns) / (a.tokens - 1));
  }
  return t;
}

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
  const Totals t = totals_of(run);
  const int failed = plan.requests - t.ok;
  const auto a_second = [&](auto count) {
    return run.seconds > 0 ? static_cast<double>(count) / run.seconds : 0;
  };
  if (json) {
    const nlohmann::json out = {{"bench", "load"},
                                {"requests", plan.requests},
                                {"failed", failed},
                                {"seconds", run.seconds},
                                {"output_tokens", t.tokens},
                                {"output_tok_s", a_second(t.tokens)},
                                {"requests_s", a_second(t.ok)},
                                {"ttft_ms", t.first.json()},
                                {"itl_ms", t.gap.json()},
                                {"tpot_ms", t.per_token.json()},
                                {"e2e_ms", t.whole.json()}};
    return out.dump() + "\n";
  }
  char head[200];
  std::snprintf(head, sizeof head,
                "%d requests, %d failed, %.2f s; %lld output tokens, %.1f tok/s, %.2f requests/s\n",
                plan.requests, failed, run.seconds, static_cast<long long>(t.tokens), a_second(t.tokens),
                a_second(t.ok));
  return head + t.first.line("TTFT, ms") + t.gap.line("ITL, ms") + t.per_token.line("TPOT, ms") +
         t.whole.line("end to end, ms");
}

}  // namespace troupe::bench
