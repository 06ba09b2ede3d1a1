#include "bench/scheduler_sim/replay.h"

#include <algorithm>
#include <deque>
#include <queue>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "base/check.h"

namespace troupe::bench {
namespace {

struct ReplayArrival {
  double at_s = 0;
  std::uint32_t turn = 0;
  bool operator>(const ReplayArrival& o) const { return at_s != o.at_s ? at_s > o.at_s : turn > o.turn; }
};

struct ReplayStep {
  double ends_s = 0;
  std::vector<std::byte> result;
};

class ReplayLoop {
 public:
  ReplayLoop(const Trace& trace, const ReplayPolicy& policy, const ReplayDevice& device)
      : trace_(trace),
        device_(device),
        scheduler_(policy.scheduler, {policy.caches, policy.caches, {1, 2}}),
        turns_of_slots_(static_cast<std::size_t>(device.slots)) {
    wire::Capacity capacity;
    capacity.kv_blocks = device.kv_blocks;
    capacity.max_slots = device.slots;
    capacity.max_tokens_per_step = policy.scheduler.max_num_batched_tokens;
    capacity.max_model_len = device.max_model_len;
    capacity.vocab_size = kTraceVocab;
    cache_.reset(kEpoch, capacity.kv_blocks, capacity.block_tokens);
    scheduler_.attach(kEpoch, capacity, output_);
    result_.requests.resize(trace.turns.size());
    for (std::uint32_t i = 0; i < trace.turns.size(); ++i) {
      if (trace.turns[i].opens_chat) arrivals_.push({trace.turns[i].at_s, i});
    }
  }

  ReplayResult run() {
    while (!arrivals_.empty() || !steps_.empty()) {
      const bool arrival =
          !arrivals_.empty() && (steps_.empty() || arrivals_.top().at_s < steps_.front().ends_s);
      if (arrival) {
        const ReplayArrival next = arrivals_.top();
        arrivals_.pop();
        now_s_ = next.at_s;
        submit(next.turn);
      } else {
        now_s_ = steps_.front().ends_s;
        TROUPE_CHECK(scheduler_.commit(steps_.front().result, output_) == Committed::applied);
        spare_ = std::move(steps_.front().result);
        steps_.pop_front();
        take_output();
      }
      advance();
    }
    TROUPE_CHECK(scheduler_.idle());
    const SchedulerTotals& totals = scheduler_.totals();
    result_.steps = totals.steps;
    result_.preempted = totals.preempted;
    result_.prompt_tokens = totals.prompt_tokens;
    result_.cached_tokens = totals.cached_tokens;
    result_.leases_left = static_cast<std::int32_t>(cache_.leases());
    return std::move(result_);
  }

 private:
  static constexpr std::uint32_t kEpoch = 1;

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
    outcome.refused = !scheduler_.submit(request).ok();
    if (outcome.refused) end_turn(index);
  }

  /// The chat's client reads the answer, then asks again.
  void end_turn(std::uint32_t index) {
    result_.end_s = now_s_;
    const std::uint32_t next = trace_.turns[index].next;
    if (next != kNoTurn) arrivals_.push({now_s_ + trace_.turns[next].at_s, next});
  }

  void take_output() {
    for (const HostTokens& host : output_.hosts) {
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

  void advance() {
    exchange();
    for (;;) {
      const std::span<const std::byte> plan = scheduler_.plan(static_cast<std::int64_t>(1e9 * now_s_) + 1);
      if (plan.empty()) return;
      run_plan(plan);
      exchange();
    }
  }

  void exchange() {
    while (scheduler_.take_asks(asks_)) {
      cache_.answer(asks_, grants_);
      scheduler_.granted(grants_);
    }
  }

  /// Appends the step, with the result that the worker will give at its end.
  void run_plan(std::span<const std::byte> bytes) {
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(bytes, view));
    const wire::StepPlan& plan = *view.as<wire::StepPlan>();
    for (const wire::StartSequence& start : view.array(plan.started)) {
      turns_of_slots_[start.slot.slot] = static_cast<std::uint32_t>(start.key.lo - 1);
    }
    rows_.clear();
    tokens_.clear();
    for (const wire::PlanRow& row : view.array(plan.rows)) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows_.push_back({row.slot, static_cast<std::int32_t>(tokens_.size()), 1, wire::RowError::none, 0});
      const TraceTurn& turn = trace_.turns[turns_of_slots_[row.slot.slot]];
      const std::int32_t position = row.position + row.tokens;
      const bool last = position >= turn.prompt_tokens + turn.output_tokens - 1;
      tokens_.push_back(last ? kTraceStop : trace_.token(turn.chat, position));
    }
    const double seconds = device_.cost.seconds(view.array(plan.rows));
    const double begins_s = std::max(now_s_, device_free_s_);
    writer_.begin(kEpoch);
    const wire::Span<wire::ResultRow> row_span = writer_.array(rows_);
    const wire::Span<TokenId> token_span = writer_.array(tokens_);
    writer_.record().step = plan.step;
    writer_.record().started_ns = static_cast<std::int64_t>(1e9 * begins_s);
    writer_.record().finished_ns = static_cast<std::int64_t>(1e9 * (begins_s + seconds));
    writer_.record().rows = row_span;
    writer_.record().tokens = token_span;
    const std::span<const std::byte> record = writer_.finish();

    ReplayStep step{begins_s + seconds, std::move(spare_)};
    step.result.assign(record.begin(), record.end());
    device_free_s_ = step.ends_s;
    result_.busy_s += seconds;
    steps_.push_back(std::move(step));
    spare_.clear();
  }

  const Trace& trace_;
  const ReplayDevice& device_;
  Scheduler scheduler_;
  CacheManager cache_;
  ReplayResult result_;
  double now_s_ = 0;
  double device_free_s_ = 0;
  std::priority_queue<ReplayArrival, std::vector<ReplayArrival>, std::greater<>> arrivals_;
  std::deque<ReplayStep> steps_;               ///< in flight, the oldest first
  std::vector<std::uint32_t> turns_of_slots_;  ///< as the worker knows them
  StepOutput output_;
  CacheAsks asks_;
  CacheGrants grants_;
  wire::RecordWriter<wire::StepResult> writer_;
  std::vector<wire::ResultRow> rows_;
  std::vector<TokenId> tokens_;
  std::vector<std::byte> spare_;  ///< memory of a result that was committed
};

}  // namespace

ReplayResult replay(const Trace& trace, const ReplayPolicy& policy, const ReplayDevice& device) {
  return ReplayLoop(trace, policy, device).run();
}

}  // namespace troupe::bench
