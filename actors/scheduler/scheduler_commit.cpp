// commit(): checks a result against its plan and applies it.
#include <algorithm>
#include <utility>

#include "actors/scheduler/scheduler.h"
#include "base/check.h"

namespace troupe {
namespace {

constexpr std::uint32_t kNoScore = UINT32_MAX;

const char* sentence(wire::RowError error) {
  switch (error) {
    case wire::RowError::not_finite:
      return "The model's output was not a finite number; the answer ends here.";
    case wire::RowError::no_such_slot: return "The worker does not know this sequence; the answer ends here.";
    case wire::RowError::none: break;
  }
  return "";
}

}  // namespace

Committed Scheduler::commit(std::span<const std::byte> bytes, StepOutput& out) {
  out.clear();
  wire::RecordView view;
  const Committed verdict = judge(bytes, view);
  if (verdict != Committed::applied) {
    ++(verdict == Committed::stale ? totals_.stale_results : totals_.malformed_results);
    return verdict;
  }
  const wire::StepResult& record = *view.as<wire::StepResult>();
  const std::span<const wire::ResultRow> results = view.array(record.rows);
  const PlannedStep& step = steps_[first_step_];
  first_step_ = (first_step_ + 1) % steps_.size();
  --in_flight_;

  sort_scores(view.array(record.logprobs), step);
  out.stats = std::exchange(since_step_, {});
  std::size_t next_result = 0;
  std::int32_t run = 0, of_prompts = 0;  // positions
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const wire::ResultRow* result = step.rows[i].samples ? &results[next_result++] : nullptr;
    commit_row(i, step.rows[i], result, view, record, out);
    const std::int32_t positions = step.rows[i].end - step.rows[i].begin;
    run += positions;
    of_prompts += positions > 1 ? positions : 0;
  }
  out.stats.running = running();
  out.stats.waiting = waiting();
  out.stats.step_s = std::max(0.0, 1e-9 * static_cast<double>(record.finished_ns - record.started_ns));
  time_.learn(step.work, step.predicted_s, out.stats.step_s);
  if (step.work.pairs > 0) out.stats.predicted_s = step.predicted_s;
  // Decodes cost more than their share of positions: only steps with few of them tell the speed of a prompt.
  if (4 * of_prompts >= 3 * run) prefill_speed_.add(run, out.stats.step_s);
  return Committed::applied;
}

Committed Scheduler::judge(std::span<const std::byte> bytes, wire::RecordView& view) const {
  if (!wire::RecordView::open(bytes, view)) return Committed::malformed;
  if (view.header().epoch != epoch_ || epoch_ == 0) return Committed::stale;
  const wire::StepResult* result = view.as<wire::StepResult>();
  if (result == nullptr) return Committed::malformed;
  const std::uint64_t oldest = next_step_ - in_flight_;
  if (result->step < oldest) return Committed::stale;
  if (in_flight_ == 0 || result->step != oldest) return Committed::malformed;
  return agrees(view, *result, steps_[first_step_]) ? Committed::applied : Committed::malformed;
}

/// Checks that the result has one row for each plan row that samples, in the plan's order, with one token or
/// an error.
bool Scheduler::agrees(const wire::RecordView& view, const wire::StepResult& result,
                       const PlannedStep& step) const {
  if (!view.holds(result.rows) || !view.holds(result.tokens) || !view.holds(result.logprobs)) return false;
  const std::span<const wire::ResultRow> rows = view.array(result.rows);
  const std::span<const TokenId> tokens = view.array(result.tokens);
  std::size_t at = 0;
  for (const PlannedRow& planned : step.rows) {
    if (!planned.samples) continue;
    if (at == rows.size()) return false;
    const wire::ResultRow& row = rows[at++];
    if (row.slot != planned.slot) return false;
    if (row.error != wire::RowError::none) {
      if (row.error > wire::RowError::no_such_slot) return false;
      continue;
    }
    if (row.count != 1 || row.first < 0 || static_cast<std::size_t>(row.first) >= tokens.size()) return false;
    const TokenId token = tokens[static_cast<std::size_t>(row.first)];
    if (token < 0 || token >= vocab_size_) return false;
  }
  if (at != rows.size()) return false;
  for (const wire::TokenLogprobs& score : view.array(result.logprobs)) {
    if (!view.holds(score.top)) return false;
  }
  return true;
}

/// Lists the logprobs of each row of the step, in the order of the result. Those of other slots are dropped.
void Scheduler::sort_scores(std::span<const wire::TokenLogprobs> scores, const PlannedStep& step) {
  score_head_.assign(scores.empty() ? 0 : step.rows.size(), kNoScore);
  if (scores.empty()) return;
  score_next_.resize(scores.size());
  rows_of_slots_.clear();
  for (std::uint32_t i = 0; i < step.rows.size(); ++i) {
    const std::uint32_t slot = step.rows[i].slot.slot;
    if (slot >= rows_of_slots_.size()) rows_of_slots_.resize(slot + 1, kNoScore);
    rows_of_slots_[slot] = i;
  }
  for (std::uint32_t i = static_cast<std::uint32_t>(scores.size()); i-- > 0;) {
    const SlotRef slot = scores[i].slot;
    const std::uint32_t row = slot.slot < rows_of_slots_.size() ? rows_of_slots_[slot.slot] : kNoScore;
    if (row == kNoScore || step.rows[row].slot != slot) continue;
    score_next_[i] = score_head_[row];
    score_head_[row] = i;
  }
}

void Scheduler::commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result,
                           const wire::RecordView& view, const wire::StepResult& record, StepOutput& out) {
  ScheduledSequence& s = table_[row.sequence];
  TROUPE_CHECK(s.live && s.slot == row.slot && s.plans_out > 0);
  --s.plans_out;
  // A late sequence runs its last known token again.
  s.committed = s.late ? std::min(row.end, static_cast<std::int32_t>(s.tokens.size()) - 1) : row.end;
  out.stats.prompt_tokens += std::max(0, std::min(row.end, s.prompt_tokens) - row.begin);
  if (result == nullptr || result->error == wire::RowError::none) {
    publish_full_blocks(s);
  } else if (s.cacheable || s.parked) {
    withdrawals_.push_back(s.key);
    s.cacheable = false;
  }
  if (s.state == SequenceState::ending) {
    totals_.discarded_tokens += result != nullptr ? 1 : 0;
    if (s.plans_out == 0 && !s.ask_open) retire(row.sequence);
    return;
  }
  if (s.group != kNoGroup && s.committed >= shared_positions(s)) groups_.prompt_ready(s.group, s.key);
  if (s.late && result != nullptr) {
    ++totals_.discarded_tokens;
    result = nullptr;
  }

  const bool scored = !score_head_.empty() && !(s.late && s.sampling.prompt_logprobs < 0);
  const std::uint32_t first_score = scored ? score_head_[index] : kNoScore;
  Finish finish = Finish::none;
  if (result != nullptr || first_score != kNoScore) {
    SequenceTokens& tokens = report(s, out);
    pass_scores(s, first_score, view, record, out);
    StepTokens& step = out.hosts[s.destination].step;
    tokens.scores = static_cast<std::int32_t>(step.scores.size()) - tokens.first_score;
    if (result != nullptr && result->error != wire::RowError::none) {
      tokens.error = sentence(result->error);
      finish = Finish::error;
    } else if (result != nullptr) {
      const TokenId token = view.array(record.tokens)[static_cast<std::size_t>(result->first)];
      step.tokens.push_back(token);
      tokens.tokens = 1;
      ++out.stats.generated_tokens;
      finish = take_token(s, token);
    }
    tokens.finish = finish;
  }
  if (finish != Finish::none) {
    end(row.sequence, SequenceState::ending);
  } else if (s.state == SequenceState::putting_back && s.plans_out == 0 && !s.ask_open) {
    retire(row.sequence);
  } else {
    go_on(s);
  }
}

/// Reports each prompt position once, even if it is computed again.
void Scheduler::pass_scores(ScheduledSequence& s, std::uint32_t score, const wire::RecordView& view,
                            const wire::StepResult& record, StepOutput& out) {
  StepTokens& step = out.hosts[s.destination].step;
  const std::span<const wire::TokenLogprobs> scores = view.array(record.logprobs);
  for (; score != kNoScore; score = score_next_[score]) {
    const wire::TokenLogprobs& from = scores[score];
    if (s.late && from.position >= s.prompt_tokens) continue;
    if (from.position < s.prompt_tokens) {
      if (from.position < s.scored) continue;
      s.scored = from.position + 1;
    }
    const std::span<const wire::Logprob> top = view.array(from.top);
    step.scores.push_back({from.position, from.chosen, static_cast<std::int32_t>(step.tops.size()),
                           static_cast<std::int32_t>(top.size())});
    step.tops.insert(step.tops.end(), top.begin(), top.end());
  }
}

SequenceTokens& Scheduler::report(ScheduledSequence& s, StepOutput& out) {
  if (out.hosts.size() <= s.destination) out.hosts.resize(s.destination + 1);
  HostTokens& host = out.hosts[s.destination];
  host.front = s.front;
  host.host = destinations_[s.destination].host;
  SequenceTokens& tokens = host.step.sequences.emplace_back();
  tokens.key = s.key;
  tokens.first_token = static_cast<std::int32_t>(host.step.tokens.size());
  tokens.first_score = static_cast<std::int32_t>(host.step.scores.size());
  tokens.attempt = s.attempt;
  tokens.position = s.output_tokens();
  if (!s.reported) {
    tokens.scheduled_ns = s.scheduled_ns;
    tokens.cached_tokens = std::max(0, s.cached_tokens);
  }
  s.reported = true;
  return tokens;
}

Finish Scheduler::take_token(ScheduledSequence& s, TokenId token) {
  s.tokens.push_back(token);
  if (s.grammar != 0) grammar_updates_.tokens(s.key, {&token, 1});
  s.proven = true;
  s.losses = 0;
  if (++s.life_tokens >= kForgivingTokens) s.short_lives = 0;
  s.isolated = s.isolated && s.short_lives >= kMaxShortLives;
  if (std::find(s.stop_ids.begin(), s.stop_ids.end(), token) != s.stop_ids.end()) return Finish::stop;
  return static_cast<std::int32_t>(s.tokens.size()) >= s.max_length ? Finish::length : Finish::none;
}

}  // namespace troupe
