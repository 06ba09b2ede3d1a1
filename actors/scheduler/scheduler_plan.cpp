// plan(): which sequences run in the next step, and how many positions of each.
#include <algorithm>

#include "actors/scheduler/scheduler.h"

namespace troupe {

std::span<const std::byte> Scheduler::plan(std::int64_t now_ns) {
  if (epoch_ == 0 || running_.empty() || in_flight_ == steps_.size()) return {};
  const std::uint32_t isolated = isolated_sequence();
  if (isolated != kNoSequence && !alone_in_flight(isolated)) return {};
  PlannedStep& step = steps_[(first_step_ + in_flight_) % steps_.size()];
  step.rows.clear();
  builder_.begin(epoch_, budget_);
  for (SlotRef slot : finished_) builder_.finished(slot);  // all slots together do not fill a record

  if (isolated != kNoSequence) {
    if (table_[isolated].remaining() > 0) plan_row(isolated, budget_, step, now_ns);
    return finish_plan(step);
  }
  // Decodes first: sequences with exactly one position to compute. Their row makes one more position
  // expected, so they still have one left afterwards, and the second pass skips them.
  for (std::uint32_t i : running_) {
    if (table_[i].remaining() == 1) plan_row(i, budget_, step, now_ns);
  }
  if (builder_.tokens_left() > 0) plan_prompts(step, now_ns);
  return finish_plan(step);
}

/// Seals the plan, unless nothing but finished slots is in it.
std::span<const std::byte> Scheduler::finish_plan(PlannedStep& step) {
  if (builder_.empty()) return {};
  finished_.clear();
  step.step = next_step_++;
  ++in_flight_;
  ++totals_.steps;
  return builder_.finish(step.step, last_command_);
}

/// The running sequence that must have its steps for itself, or kNoSequence. Admission lets in one at a time.
std::uint32_t Scheduler::isolated_sequence() {
  if (!isolates_) return kNoSequence;
  isolates_ = false;
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (!table_[i].live || !table_[i].isolated) continue;
    isolates_ = true;
    if (table_[i].active()) return i;
  }
  return kNoSequence;
}

/// True if no plan in flight has a row of another sequence.
bool Scheduler::alone_in_flight(std::uint32_t sequence) const {
  for (std::size_t k = 0; k < in_flight_; ++k) {
    for (const PlannedRow& row : steps_[(first_step_ + k) % steps_.size()].rows) {
      if (row.sequence != sequence) return false;
    }
  }
  return true;
}

/// Tokens that prompts may take of a step with so many decodes, when `admitted` prompts and the queue wait. A
/// long step delays each decode by its length, and serves the prompts sooner; so prompts get the whole step
/// when they are half as many as the decodes, and the less the fewer they are.
std::int32_t Scheduler::prompt_tokens(std::size_t decodes, std::int32_t admitted) const {
  const std::int64_t prompts = 2 * (std::int64_t{admitted} + queue_.size());
  const auto sharers = static_cast<std::int64_t>(decodes);
  if (prompts >= sharers) return budget_;
  return std::max(least_prompt_tokens_, static_cast<std::int32_t>(budget_ * prompts / sharers));
}

/// Adds rows of prompts, within what decodes left of the budget: first of short ones, in the order of
/// admission, then equal shares of the long ones. Short ones leave a quarter to the long ones, at least one
/// token.
void Scheduler::plan_prompts(PlannedStep& step, std::int64_t now_ns) {
  long_rows_.clear();
  std::int32_t prompts = 0;
  for (std::uint32_t i : running_) {
    const std::int32_t remaining = table_[i].remaining();
    prompts += remaining > 1 ? 1 : 0;
    if (is_long(remaining)) long_rows_.push_back(i);
  }
  if (prompts == 0) return;
  const std::int32_t unused = std::max(0, builder_.tokens_left() - prompt_tokens(step.rows.size(), prompts));
  const auto left = [&] { return builder_.tokens_left() - unused; };
  const std::int32_t reserved = long_rows_.empty() ? 0 : std::max(1, left() / 4);
  for (std::uint32_t i : running_) {
    if (left() <= reserved) break;
    const std::int32_t remaining = table_[i].remaining();
    if (remaining > 1 && !is_long(remaining)) plan_row(i, left() - reserved, step, now_ns);
  }
  for (std::size_t k = 0; k < long_rows_.size() && left() > 0; ++k) {
    const std::int32_t sharers = static_cast<std::int32_t>(long_rows_.size() - k);
    plan_row(long_rows_[k], (left() + sharers - 1) / sharers, step, now_ns);
  }
}

/// Adds one row of the sequence and what the worker must know for it. Runs at most `most` positions, and
/// fewer, or none, when the budget, its blocks or the record do not suffice.
void Scheduler::plan_row(std::uint32_t sequence, std::int32_t most, PlannedStep& step, std::int64_t now_ns) {
  ScheduledSequence& s = table_[sequence];
  const std::int32_t covered = s.blocks * block_tokens_ - s.planned;
  if (covered <= 0) {
    ++totals_.stalled_rows;
    return;
  }
  if (!s.started) {
    if (!builder_.start(s)) return;
    s.started = true;
    s.known = static_cast<std::int32_t>(s.tokens.size());
    if (s.scheduled_ns == 0) s.scheduled_ns = now_ns;
  }
  while (s.sent < s.known) {
    const auto ids = s.tokens.run(static_cast<std::size_t>(s.sent), static_cast<std::size_t>(s.known - s.sent));
    const std::int32_t fitted = builder_.ids(s.slot, s.sent, ids);
    s.sent += fitted;
    if (static_cast<std::size_t>(fitted) < ids.size()) break;
  }
  std::int32_t tokens = std::min({s.remaining(), most, builder_.tokens_left(), covered});
  // Includes the id after the row: its logprob, if wanted, comes from the row's last position.
  if (s.sent < s.known) tokens = std::min(tokens, s.sent - s.planned - 1);
  if (tokens <= 0) return;
  tokens = builder_.fitting(s, tokens);
  if (tokens <= 0) return;

  if (!builder_.blocks(s.slot, s.blocks - static_cast<std::int32_t>(s.unsent_blocks.size()), s.unsent_blocks))
    return;
  s.unsent_blocks.clear();
  const bool samples = s.planned + tokens == s.expected;
  const std::int32_t outputs = s.expected - s.prompt_tokens;  // before the one that is sampled
  const bool gated = samples && s.grammar != 0 && outputs >= s.gated_from;
  const std::uint32_t again = s.again ? wire::kAgain : 0u;
  if (!builder_.row(s, tokens, (samples ? wire::kSamples : 0u) | (gated ? wire::kGated : 0u) | again)) return;
  s.again = false;
  if (gated) grammar_news_.row(next_step_, {s.key, s.slot, outputs});
  step.rows.push_back({sequence, s.slot, s.planned, s.planned + tokens, samples});
  s.planned += tokens;
  if (samples) ++s.expected;
  ++s.plans_out;
}

}  // namespace troupe
