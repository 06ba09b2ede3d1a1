#include "bench/scheduler_sim/simulated_engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace troupe::bench {

SimulatedEngine::SimulatedEngine(Setup setup)
    : setup_(std::move(setup)),
      scheduler_(setup_.scheduler, setup_.caching),
      keys_(static_cast<std::size_t>(setup_.device.slots)) {
  wire::Capacity capacity;
  capacity.kv_blocks = setup_.device.kv_blocks;
  capacity.max_slots = setup_.device.slots;
  capacity.max_tokens_per_step = setup_.scheduler.max_num_batched_tokens;
  capacity.max_model_len = setup_.device.max_model_len;
  capacity.vocab_size = setup_.vocab_size;
  if (setup_.names != nullptr) cache_.keep_names(setup_.names);
  cache_.reset(kEpoch, capacity.kv_blocks, capacity.block_tokens, {}, setup_.memory);
  scheduler_.attach(kEpoch, capacity, output_);
}

void SimulatedEngine::advance(double now_s) {
  exchange();
  for (;;) {
    const std::span<const std::byte> plan = scheduler_.plan(static_cast<std::int64_t>(1e9 * now_s) + 1);
    if (plan.empty()) return;
    run_plan(plan, now_s);
    exchange();
  }
}

const StepOutput& SimulatedEngine::end_step() {
  TROUPE_CHECK(scheduler_.commit(steps_.front().result, output_) == Committed::applied);
  spare_ = std::move(steps_.front().result);
  steps_.pop_front();
  return output_;
}

void SimulatedEngine::exchange() {
  while (scheduler_.take_asks(asks_)) {
    cache_.answer(asks_, grants_);
    scheduler_.granted(grants_);
  }
}

/// Appends the step, with the result that the worker will give at its end.
void SimulatedEngine::run_plan(std::span<const std::byte> bytes, double now_s) {
  wire::RecordView view;
  TROUPE_CHECK(wire::RecordView::open(bytes, view));
  const wire::StepPlan& plan = *view.as<wire::StepPlan>();
  for (const wire::StartSequence& start : view.array(plan.started)) keys_[start.slot.slot] = start.key;
  rows_.clear();
  tokens_.clear();
  for (const wire::PlanRow& row : view.array(plan.rows)) {
    if ((row.flags & wire::kSamples) == 0) continue;
    rows_.push_back({row.slot, static_cast<std::int32_t>(tokens_.size()), 1, wire::RowError::none, 0});
    tokens_.push_back(setup_.text(keys_[row.slot.slot], row.position + row.tokens));
  }
  const double seconds = setup_.device.cost.seconds(view.array(plan.rows)) / setup_.device.speed;
  const double begins_s = std::max(now_s, device_free_s_);
  writer_.begin(kEpoch);
  const wire::Span<wire::ResultRow> row_span = writer_.array(rows_);
  const wire::Span<TokenId> token_span = writer_.array(tokens_);
  writer_.record().step = plan.step;
  writer_.record().started_ns = static_cast<std::int64_t>(1e9 * begins_s);
  writer_.record().finished_ns = static_cast<std::int64_t>(1e9 * (begins_s + seconds));
  writer_.record().rows = row_span;
  writer_.record().tokens = token_span;
  const std::span<const std::byte> record = writer_.finish();

  Step step{begins_s + seconds, std::move(spare_)};
  step.result.assign(record.begin(), record.end());
  device_free_s_ = step.ends_s;
  busy_s_ += seconds;
  steps_.push_back(std::move(step));
  spare_.clear();
}

}  // namespace troupe::bench
