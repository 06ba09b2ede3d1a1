#include "bench/scheduler_sim/summary.h"

#include <algorithm>
#include <vector>

namespace troupe::bench {
namespace {

constexpr std::int32_t kAloneBudget = 8192;

/// The value below which a share `q` lies; 0 without values. Reorders them.
double percentile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

/// Tokens that a turn adds to what its chat, or other chats with its system prompt, had before.
std::int32_t new_tokens(const Trace& trace, std::size_t i) {
  const TraceTurn& turn = trace.turns[i];
  if (i == 0 || trace.turns[i - 1].chat != turn.chat)
    return turn.prompt_tokens - trace.chats[turn.chat].system_tokens;
  const TraceTurn& before = trace.turns[i - 1];
  return turn.prompt_tokens - before.prompt_tokens - before.output_tokens;
}

double last_opening_s(const Trace& trace) {
  double last = 1e-9;
  for (const TraceTurn& turn : trace.turns) last = turn.opens_chat ? std::max(last, turn.at_s) : last;
  return last;
}

}  // namespace

ReplaySummary summarise(const Trace& trace, const ReplayResult& result, const ReplayDevice& device,
                        const GoodBounds& bounds) {
  ReplaySummary out;
  std::vector<double> ttft, tpot, short_ttft;
  double good = 0, all_tokens = 0, speeds = 0, squares = 0;
  const double span = trace.options.clients > 0 ? result.end_s : last_opening_s(trace);
  double requests = 0;
  for (std::size_t i = 0; i < result.requests.size(); ++i) {
    const RequestOutcome& r = result.requests[i];
    all_tokens += r.output_tokens;
    if (r.arrived_s > span) continue;
    ++requests;
    if (r.endings == 0) continue;
    ttft.push_back(1e3 * r.ttft_s());
    if (new_tokens(trace, i) <= kShortPrompt) short_ttft.push_back(1e3 * r.ttft_s());
    if (r.output_tokens > 1) tpot.push_back(1e3 * r.tpot_s());
    const bool in_time = r.ttft_s() <= bounds.first_s + bounds.per_prompt_token_s * r.prompt_tokens;
    good += in_time && r.tpot_s() <= bounds.between_s ? 1 : 0;
    const double alone = device.cost.alone_s(r.prompt_tokens, r.output_tokens, kAloneBudget);
    const double speed = alone / (r.ended_s - r.arrived_s);
    speeds += speed;
    squares += speed * speed;
  }
  out.goodput = good / span;
  out.good_share = requests > 0 ? good / requests : 0;
  out.tokens_per_s = all_tokens / result.end_s;
  out.ttft_p50 = percentile(ttft, 0.5);
  out.ttft_p99 = percentile(ttft, 0.99);
  out.tpot_p50 = percentile(tpot, 0.5);
  out.tpot_p99 = percentile(tpot, 0.99);
  out.short_ttft_p99 = percentile(short_ttft, 0.99);
  out.fairness = squares > 0 ? speeds * speeds / (static_cast<double>(ttft.size()) * squares) : 0;
  out.hit_rate = result.prompt_tokens > 0
                     ? static_cast<double>(result.cached_tokens) / static_cast<double>(result.prompt_tokens)
                     : 0;
  out.busy = result.busy_s / result.end_s;
  out.preempted = result.preempted;
  return out;
}

}  // namespace troupe::bench
