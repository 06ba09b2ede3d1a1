// commit(): checks a result against its plan and applies it.
#include <algorithm>
#include <utility>

#include "actors/scheduler/scheduler.h"
#include "base/check.h"

namespace troupe {
Committed Scheduler::commit(std::span<const std::byte> bytes, StepOutput& out) {
  out.clear();
  const Committed verdict = result_.read(bytes, epoch_, steps_, limits_.vocab_size);
  if (verdict != Committed::applied) {
    counters_.result_dropped(verdict);
    return verdict;
  }
  const PlannedStep& step = steps_.pop();
  out.stats = counters_.take_since_step();
  std::size_t next_result = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const wire::ResultRow* result = step.rows[i].samples ? &result_.rows()[next_result++] : nullptr;
    commit_row(i, step.rows[i], result, out);
  }
  out.stats.running = running();
  out.stats.waiting = waiting();
  out.stats.step_s = result_.seconds();
  time_.learn(step.work, step.predicted_s, out.stats.step_s);
  if (step.work.pairs > 0) out.stats.predicted_s = step.predicted_s;
  // Decodes cost more than their share of positions: only steps with few of them tell the speed of a prompt.
  if (4 * std::int64_t{step.prompt_positions} >= 3 * step.work.tokens) {
    prefill_speed_.add(static_cast<double>(step.work.tokens), out.stats.step_s);
  }
  return Committed::applied;
}

void Scheduler::commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result,
                           StepOutput& out) {
  ScheduledSequence& s = table_[row.sequence];
  TROUPE_CHECK(s.live && s.slot == row.slot && s.plans_out > 0);
  --s.plans_out;
  // A late sequence runs its last known token again.
  s.committed = s.late ? std::min(row.end, static_cast<std::int32_t>(s.tokens.size()) - 1) : row.end;
  out.stats.prompt_tokens += std::max(0, std::min(row.end, s.prompt_tokens) - row.begin);
  if (result == nullptr || result->error == wire::RowError::none) {
    names_.publish_full_blocks(s);
  } else if (s.cacheable || s.parked) {
    names_.withdraw(s);
    s.cacheable = false;
  }
  if (s.state == SequenceState::ending) {
    if (result != nullptr) counters_.token_discarded();
    life_.retire_if_unused(row.sequence);
    return;
  }
  if (s.group != kNoGroup && s.committed >= shared_positions(s)) groups_.prompt_ready(s.group, s.key);
  if (s.late && result != nullptr) {
    counters_.token_discarded();
    result = nullptr;
  }

  Finish finish = Finish::none;
  if (result != nullptr || result_.is_scored(index, s)) {
    SequenceTokens& tokens = fronts_.report(s, out);
    StepTokens& step = out.hosts[s.destination].step;
    result_.pass_scores(index, s, step);
    tokens.scores = static_cast<std::int32_t>(step.scores.size()) - tokens.first_score;
    if (result != nullptr && result->error != wire::RowError::none) {
      tokens.error = sentence(result->error);
      finish = Finish::error;
    } else if (result != nullptr) {
      const TokenId token = result_.token(*result);
      step.tokens.push_back(token);
      tokens.tokens = 1;
      ++out.stats.generated_tokens;
      finish = take_token(s, token);
    }
    tokens.finish = finish;
  }
  if (finish != Finish::none) {
    life_.end(row.sequence, SequenceState::ending);
  } else if (s.state == SequenceState::putting_back) {
    life_.retire_if_unused(row.sequence);
  } else if (s.late) {
    run_late_position_again(s);
  }
}

Finish Scheduler::take_token(ScheduledSequence& s, TokenId token) {
  s.tokens.push_back(token);
  if (s.grammar != 0) grammar_updates_.tokens(s.key, {&token, 1});
  inquiry_.yielded(s);
  if (std::find(s.stop_ids.begin(), s.stop_ids.end(), token) != s.stop_ids.end()) return Finish::stop;
  return static_cast<std::int32_t>(s.tokens.size()) >= s.max_length ? Finish::length : Finish::none;
}

}  // namespace troupe
