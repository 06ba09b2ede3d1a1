// plan(): which sequences run in the next step, and how many positions of each.
#include <algorithm>

#include "actors/scheduler/scheduler.h"

namespace troupe {

std::span<const std::byte> Scheduler::plan(std::int64_t now_ns) {
  if (epoch_ == 0 || life_.running().empty() || steps_.full()) return {};
  const std::uint32_t isolated = inquiry_.isolated(table_);
  if (isolated != kNoSequence && !steps_.has_only(isolated)) return {};
  if (waits_for_step()) return {};
  PlannedStep& step = steps_.begin();
  builder_.begin(epoch_, limits_.step_tokens);
  time_.begin();
  has_newcomer_ = false;
  for (SlotRef slot : life_.finished_slots()) builder_.finished(slot);  // all slots together do not fill a record

  if (isolated != kNoSequence) {
    const ScheduledSequence& s = table_[isolated];
    if (s.remaining() > 0) {
      plan_row(isolated, time_.chunk(s.planned, s.remaining(), limits_.step_tokens, time_.end_s(), true), step, now_ns);
    }
    return finish_plan(step);
  }
  // Decodes first: sequences with exactly one position to compute. Their row makes one more position
  // expected, so they still have one left afterwards, and the second pass skips them.
  for (std::uint32_t i : life_.running()) {
    if (table_[i].remaining() == 1) plan_row(i, limits_.step_tokens, step, now_ns);
  }
  if (builder_.tokens_left() > 0) plan_prompts(step, now_ns);
  return finish_plan(step);
}

/// Seals the plan, unless nothing but finished slots is in it.
std::span<const std::byte> Scheduler::finish_plan(PlannedStep& step) {
  if (builder_.empty()) return {};
  life_.finished_slots_sent();
  step.work = time_.work();
  step.predicted_s = time_.predicted_s();
  counters_.step_planned();
  return builder_.finish(steps_.push(), leases_.last_command());
}

/// True when the newest step in flight should end before the next is planned: it holds prompts alone and is long,
/// and so would be the next. A quick prompt that arrives meanwhile is planned at once.
bool Scheduler::waits_for_step() const {
  if (steps_.empty()) return false;
  const PlannedStep& newest = steps_.newest();
  if (!time_.runs_alone(newest.work, newest.predicted_s)) return false;
  return std::none_of(life_.running().begin(), life_.running().end(), [this](std::uint32_t i) {
    return table_[i].remaining() > 0 && !limits_.is_long(table_[i].remaining()) && !is_slow(table_[i]);
  });
}

bool Scheduler::is_slow(const ScheduledSequence& s) const { return time_.is_slow(s.planned, s.remaining()); }

/// Part of a step's tokens that prompts may take beside so many decodes, when `admitted` prompts and the queue wait. A long step delays each decode by its length, and serves the prompts
/// sooner; so prompts get the whole step when they are half as many as the decodes, and the less the fewer they are.
double Scheduler::prompt_share(std::size_t decodes, std::int32_t admitted) const {
  const double prompts = 2.0 * (admitted + life_.queue().size());
  const auto sharers = static_cast<double>(decodes);
  return prompts >= sharers ? 1 : prompts / sharers;
}

/// Adds rows of prompts, within what decodes left of the budgets of tokens and time: first of quick ones, then of
/// slow ones, each in the order of admission, then equal shares of the long ones. Each kind leaves a quarter to
/// those after it. The first row of a kind is never shorter than the least chunk, so that each goes on.
void Scheduler::plan_prompts(PlannedStep& step, std::int64_t now_ns) {
  constexpr double kPart = 0.75;  // of the remaining budget, for one kind of prompts
  long_rows_.clear();
  std::int32_t prompts = 0, slow = 0;
  for (std::uint32_t i : life_.running()) {
    const std::int32_t remaining = table_[i].remaining();
    if (remaining <= 1) continue;
    ++prompts;
    if (limits_.is_long(remaining)) {
      long_rows_.push_back(i);
    } else {
      slow += is_slow(table_[i]) ? 1 : 0;
    }
  }
  if (prompts == 0) return;
  const double share = prompt_share(step.rows.size(), prompts);
  const std::int32_t most = std::max(limits_.least_prompt_tokens, static_cast<std::int32_t>(share * limits_.step_tokens));
  const std::int32_t unused = std::max(0, builder_.tokens_left() - most);
  const auto left = [&] { return builder_.tokens_left() - unused; };
  // Of the time twice the share: the limit on time is mostly reached with fewer tokens than that on tokens.
  const double end_s = time_.until_s(std::clamp(2 * share, limits_.least_prompt_share, 1.0), time_.end_s());
  const auto add_kind = [&](bool is_slow_kind, bool others_follow) {
    const std::int32_t reserved = others_follow ? std::max(1, left() / 4) : 0;
    const double until_s = time_.until_s(others_follow ? kPart : 1, end_s);
    bool first = true;
    for (std::uint32_t i : life_.running()) {
      if (left() <= reserved) break;
      const ScheduledSequence& s = table_[i];
      if (s.remaining() <= 1 || limits_.is_long(s.remaining()) || is_slow(s) != is_slow_kind) continue;
      const std::int32_t tokens = time_.chunk(s.planned, s.remaining(), left() - reserved, until_s, first);
      if (tokens == 0) break;
      plan_row(i, tokens, step, now_ns);
      first = false;
    }
  };
  if (prompts > slow + static_cast<std::int32_t>(long_rows_.size())) {
    add_kind(false, slow > 0 || !long_rows_.empty());
  }
  if (slow > 0) add_kind(true, !long_rows_.empty());
  const double long_end_s = has_newcomer_ ? time_.newcomer_end_s(end_s) : end_s;
  for (std::size_t k = 0; k < long_rows_.size() && left() > 0; ++k) {
    const auto sharers = static_cast<std::int32_t>(long_rows_.size() - k);
    const ScheduledSequence& s = table_[long_rows_[k]];
    const std::int32_t tokens = time_.chunk(s.planned, s.remaining(), (left() + sharers - 1) / sharers,
                                            time_.until_s(1.0 / sharers, long_end_s), k == 0);
    if (tokens > 0) plan_row(long_rows_[k], tokens, step, now_ns);
  }
}

/// Adds one row of the sequence and what the worker must know for it. Runs at most `most` positions, and
/// fewer, or none, when the budget, its blocks or the record do not suffice.
void Scheduler::plan_row(std::uint32_t sequence, std::int32_t most, PlannedStep& step, std::int64_t now_ns) {
  ScheduledSequence& s = table_[sequence];
  const bool arrives = !s.started && !limits_.is_long(s.remaining());
  const std::int32_t covered = s.blocks * limits_.block_tokens - s.planned;
  if (covered <= 0) {
    counters_.row_stalled();
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
  if (gated) grammar_updates_.row(steps_.next_number(), {s.key, s.slot, outputs});
  step.rows.push_back({sequence, s.slot, s.planned, s.planned + tokens, samples});
  step.prompt_positions += tokens > 1 ? tokens : 0;
  time_.add(s.planned, tokens);
  has_newcomer_ |= arrives;
  s.planned += tokens;
  if (samples) ++s.expected;
  ++s.plans_out;
}

}  // namespace troupe
