#include "bench/scheduler_sim/replay.h"

#include <algorithm>
#include <queue>

#include "base/check.h"

namespace troupe::bench {
namespace {

struct ReplayArrival {
  double at_s = 0;
  std::uint32_t turn = 0;
  bool operator>(const ReplayArrival& o) const { return at_s != o.at_s ? at_s > o.at_s : turn > o.turn; }
};

class ReplayLoop {
 public:
  ReplayLoop(const Trace& trace, const ReplayPolicy& policy, const ReplayDevice& device)
      : trace_(trace), engine_(setup(trace, policy, device)) {
    result_.requests.resize(trace.turns.size());
    for (std::uint32_t i = 0; i < trace.turns.size(); ++i) {
      if (trace.turns[i].opens_chat) arrivals_.push({trace.turns[i].at_s, i});
    }
  }

  ReplayResult run() {
    while (!arrivals_.empty() || engine_.runs()) {
      const bool arrival = !arrivals_.empty() && (!engine_.runs() || arrivals_.top().at_s < engine_.ends_s());
      if (arrival) {
        const ReplayArrival next = arrivals_.top();
        arrivals_.pop();
        now_s_ = next.at_s;
        submit(next.turn);
      } else {
        now_s_ = engine_.ends_s();
        take(engine_.end_step());
      }
      engine_.advance(now_s_);
    }
    TROUPE_CHECK(engine_.scheduler().idle());
    const SchedulerTotals& totals = engine_.scheduler().totals();
    result_.steps = totals.steps;
    result_.preempted = totals.preempted;
    result_.prompt_tokens = totals.prompt_tokens;
    result_.cached_tokens = totals.cached_tokens;
    result_.busy_s = engine_.busy_s();
    result_.leases_left = static_cast<std::int32_t>(engine_.cache().leases());
    return std::move(result_);
  }

 private:
  static SimulatedEngine::Setup setup(const Trace& trace, const ReplayPolicy& policy,
                                      const ReplayDevice& device) {
    const auto text = [&trace](const RequestKey& key, std::int32_t position) {
      const TraceTurn& turn = trace.turns[key.lo - 1];
      const bool last = position >= turn.prompt_tokens + turn.output_tokens - 1;
      return last ? kTraceStop : trace.token(turn.chat, position);
    };
    return {policy.scheduler, {policy.caches, policy.caches, {1, 2}}, device, text, kTraceVocab};
  }

  void submit(std::uint32_t index) {
    const TraceTurn& turn = trace_.turns[index];
    RequestOutcome& outcome = result_.requests[index];
    outcome.arrived_s = now_s_;
    outcome.prompt_tokens = turn.prompt_tokens;
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, std::uint64_t{index} + 1};
    spec.prompt.resize(static_cast<std::size_t>(turn.prompt_tokens));
    for (std::int32_t i = 0; i < turn.prompt_tokens; ++i) {
      spec.prompt[static_cast<std::size_t>(i)] = trace_.token(turn.chat, i);
    }
    spec.prompt_tokens = turn.prompt_tokens;
    spec.max_output_tokens = std::max(kMaxAnswerTokens, turn.output_tokens);
    spec.stop_ids = {kTraceStop};
    outcome.refused = !engine_.submit(request).ok();
    if (outcome.refused) end_turn(index);
  }

  /// The chat's client reads the answer, then asks again.
  void end_turn(std::uint32_t index) {
    result_.end_s = now_s_;
    const std::uint32_t next = trace_.turns[index].next;
    if (next != kNoTurn) arrivals_.push({now_s_ + trace_.turns[next].at_s, next});
  }

  void take(const StepOutput& output) {
    for (const HostTokens& host : output.hosts) {
      for (const SequenceTokens& tokens : host.step.sequences) {
        const auto index = static_cast<std::uint32_t>(tokens.key.lo - 1);
        RequestOutcome& outcome = result_.requests[index];
        if (tokens.scheduled_ns != 0) outcome.cached_tokens = tokens.cached_tokens;
        if (outcome.output_tokens == 0 && tokens.tokens > 0) outcome.first_token_s = now_s_;
        outcome.output_tokens += tokens.tokens;
        if (tokens.finish == Finish::none) continue;
        ++outcome.endings;
        outcome.ended_s = now_s_;
        end_turn(index);
      }
    }
  }

  const Trace& trace_;
  SimulatedEngine engine_;
  ReplayResult result_;
  double now_s_ = 0;
  std::priority_queue<ReplayArrival, std::vector<ReplayArrival>, std::greater<>> arrivals_;
};

}  // namespace

ReplayResult replay(const Trace& trace, const ReplayPolicy& policy, const ReplayDevice& device) {
  return ReplayLoop(trace, policy, device).run();
}

}  // namespace troupe::bench
