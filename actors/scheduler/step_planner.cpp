#include "actors/scheduler/step_planner.h"

#include <algorithm>

namespace troupe {
namespace {

/// Part of a step's tokens that prompts may take beside so many decodes, when so many prompts are admitted or
/// wait. A long step delays each decode by its length, and serves the prompts sooner; so prompts get the
/// whole step when they are half as many as the decodes, and the less the fewer they are.
double prompt_share(std::size_t decodes, std::int32_t prompts) {
  const double twice = 2.0 * prompts;
  const auto sharers = static_cast<double>(decodes);
  return twice >= sharers ? 1 : twice / sharers;
}

}  // namespace

void StepPlanner::attach(std::uint32_t epoch, const WorkerLimits& worker, double max_prompt_step_s,
                         std::uint64_t weight_bytes) {
  epoch_ = epoch;
  worker_ = worker;
  prefill_speed_.forget();
  background_step_s_ = 0;
  speculation_.attach(worker.max_drafts);
  time_.attach(max_prompt_step_s, worker.step_tokens, weight_bytes);
}

std::span<const std::byte> StepPlanner::plan(SequenceLifecycle& life, StepsInFlight& steps,
                                             std::uint32_t isolated, std::uint64_t after_command,
                                             std::int64_t now_ns) {
  if (isolated != kNoSequence && !(steps.has_only(isolated) && media_.has_only(isolated))) return {};
  find_runnable(life.running());
  if (waits_for(steps)) return {};
  const bool encodes = media_.in_flight() > 0;
  const bool follows_piece = encodes && !steps.empty();
  step_ = &steps.begin();
  number_ = steps.next_number();
  builder_.begin(epoch_, worker_.step_tokens, worker_.max_sampled);
  drafts_ = isolated != kNoSequence ? 0 : drafts_of_step();
  step_->background = background_ > 0;
  time_.begin(encodes, step_->background);
  has_newcomer_ = false;
  for (SlotRef slot : life.finished_slots())
    builder_.finished(slot);  // all slots together do not fill a record

  if (isolated != kNoSequence) {
    const ScheduledSequence& s = table_[isolated];
    if (s.remaining() > 0) {
      const std::int32_t most =
          s.hands_over ? std::min(worker_.step_tokens, kHandOverTokens) : worker_.step_tokens;
      add_row(isolated, time_.chunk(s.planned, s.remaining(), most, time_.end_s(), true), now_ns);
    }
  } else {
    for (std::uint32_t i : decodes_) add_row(i, worker_.step_tokens, now_ns);
    if (builder_.tokens_left() > 0) add_prompts(life.queue().size(), now_ns);
  }
  if (builder_.empty() && !media_.frees_by_plan()) return {};  // nothing but finished slots
  life.finished_slots_sent();
  step_->work = time_.work();
  step_->predicted_s = time_.predicted_s();
  step_->follows_piece = follows_piece;
  step_->drafts = drafts_;
  step_->freed_media_tokens = media_.plan_made();
  counters_.step_planned();
  return builder_.finish(steps.push(), after_command);
}

/// Finds decodes_ and prompts_: sequences with exactly one position to compute, which come first, and with
/// more. Without background sequences while another has a prompt to compute: it waits for nothing of theirs.
void StepPlanner::find_runnable(const std::vector<std::uint32_t>& running) {
  decodes_.clear();
  prompts_.clear();
  background_ = 0;
  bool foreground_prompt = false;
  for (std::uint32_t i : running) {
    const ScheduledSequence& s = table_[i];
    const std::int32_t remaining = s.remaining();
    if (remaining <= 0) continue;
    (remaining == 1 ? decodes_ : prompts_).push_back(i);
    background_ += s.background ? 1 : 0;
    foreground_prompt |= !s.background && remaining > 1;
  }
  if (background_ == 0 || !foreground_prompt) return;
  background_ = 0;
  for (std::vector<std::uint32_t>* rows : {&decodes_, &prompts_})
    std::erase_if(*rows, [this](std::uint32_t i) { return table_[i].background; });
}

/// Draft tokens of each row from a last token: what pays, as far as every such row can have as many.
std::int32_t StepPlanner::drafts_of_step() const {
  if (worker_.max_drafts == 0) return 0;
  const auto rows = static_cast<std::int32_t>(
      std::ranges::count_if(decodes_, [this](std::uint32_t i) { return table_[i].from_last; }));
  if (rows == 0) return 0;
  const std::int32_t spare = std::min(worker_.max_sampled, worker_.step_tokens) - worker_.slots;
  return speculation_.drafts_for(rows, std::max(0, spare) / rows);
}

void StepPlanner::learn(const PlannedStep& step, std::span<const std::int32_t> yields, double seconds,
                        double pause_s) {
  if (step.background) background_step_s_ = seconds;
  if (step.decodes > 0 && step.decodes == static_cast<std::int32_t>(step.rows.size()))
    speculation_.learn(step.decodes, step.drafts, yields, seconds);
  time_.learn(step.work, step.predicted_s, seconds);
  if (step.follows_piece) time_.learn_piece(pause_s);
  // Decodes cost more than their share of positions: only steps with few of them tell the speed of a prompt.
  if (step.work.tokens > 0 && 4 * std::int64_t{step.prompt_positions} >= 3 * step.work.tokens) {
    prefill_speed_.add(static_cast<double>(step.work.tokens), seconds);
  }
}

/// True when the newest step in flight should end before one with these rows is planned: it holds prompts
/// alone and is long, and so would be the next; or background sequences are among them, and such steps are
/// slow; or they are alone, and it holds prompts. A quick prompt that arrives meanwhile is planned at once.
bool StepPlanner::waits_for(const StepsInFlight& steps) const {
  if (steps.empty()) return false;
  const PlannedStep& newest = steps.newest();
  if (background_ > 0 && background_step_s_ >= kSlowStep) return true;
  if (newest.prompt_positions > 0 && background_ > 0 && background_ == decodes_.size() + prompts_.size())
    return true;
  if (!time_.runs_alone(newest.work, newest.predicted_s)) return false;
  const auto is_quick = [this](std::uint32_t i) {
    return !worker_.is_long(table_[i].remaining()) && !is_slow(table_[i]);
  };
  return std::ranges::none_of(decodes_, is_quick) && std::ranges::none_of(prompts_, is_quick);
}

/// Adds rows of prompts, within what decodes left of the budgets of tokens and time: first of quick ones,
/// then of slow ones, each in the order of admission, then equal shares of the long ones. Each kind leaves a
/// quarter to those after it. With a prompt that is to be handed over all have kHandOverTokens at most. The
/// first row of a kind is never shorter than the least chunk, so that each goes on.
void StepPlanner::add_prompts(std::int32_t waiting, std::int64_t now_ns) {
  constexpr double kPart = 0.75;  // of the remaining budget, for one kind of prompts
  long_rows_.clear();
  if (prompts_.empty()) return;
  const auto prompts = static_cast<std::int32_t>(prompts_.size());
  std::int32_t slow = 0;
  bool hands_over = false;
  for (std::uint32_t i : prompts_) {
    hands_over |= table_[i].hands_over;
    if (worker_.is_long(table_[i].remaining())) {
      long_rows_.push_back(i);
    } else {
      slow += is_slow(table_[i]) ? 1 : 0;
    }
  }
  const double share = prompt_share(step_->rows.size(), prompts + waiting);
  std::int32_t most =
      std::max(worker_.least_prompt_tokens, static_cast<std::int32_t>(share * worker_.step_tokens));
  if (hands_over) most = std::min(most, kHandOverTokens);
  const std::int32_t unused = std::max(0, builder_.tokens_left() - most);
  const auto left = [&] { return builder_.tokens_left() - unused; };
  // Of the time twice the share: the limit on time is mostly reached with fewer tokens than that on tokens.
  const double end_s = time_.end_s(std::clamp(2 * share, worker_.least_prompt_share, 1.0));
  const auto add_kind = [&](bool is_slow_kind, bool others_follow) {
    const std::int32_t reserved = others_follow ? std::max(1, left() / 4) : 0;
    const double until_s = time_.until_s(others_follow ? kPart : 1, end_s);
    bool first = true;
    for (std::uint32_t i : prompts_) {
      if (left() <= reserved) break;
      const ScheduledSequence& s = table_[i];
      if (s.remaining() <= 1 || worker_.is_long(s.remaining()) || is_slow(s) != is_slow_kind) continue;
      const std::int32_t tokens = time_.chunk(s.planned, s.remaining(), left() - reserved, until_s, first);
      if (tokens == 0) break;
      add_row(i, tokens, now_ns);
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
    if (tokens > 0) add_row(long_rows_[k], tokens, now_ns);
  }
}

/// Adds one row of the sequence and what the worker must know for it. Runs at most `most` positions, and
/// fewer, or none, when the budget, its blocks or the record do not suffice.
void StepPlanner::add_row(std::uint32_t sequence, std::int32_t most, std::int64_t now_ns) {
  ScheduledSequence& s = table_[sequence];
  const bool arrives = !s.started && !worker_.is_long(s.remaining());
  const std::int32_t covered = s.blocks * worker_.block_tokens - s.next_position();
  if (covered <= 0) {
    counters_.row_stalled();
    return;
  }
  if (s.from_last) return add_row_from_last(sequence);
  if (!s.started) {
    if (!builder_.start(s)) return;
    media_.announce(s);
    s.started = true;
    s.known = static_cast<std::int32_t>(s.tokens.size());
    if (s.scheduled_ns == 0) s.scheduled_ns = now_ns;
  }
  while (s.sent < s.known) {
    const auto ids =
        s.tokens.run(static_cast<std::size_t>(s.sent), static_cast<std::size_t>(s.known - s.sent));
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

  if (!send_blocks(s)) return;
  const bool samples = s.planned + tokens == s.expected;
  const std::int32_t outputs = s.expected - s.prompt_tokens;  // before the one that is sampled
  const bool gated = samples && s.grammar != 0 && (s.owes_ask || outputs >= s.gated_from);
  const std::uint32_t again = s.again ? wire::kAgain : 0u;
  if (!builder_.row(s, tokens, (samples ? wire::kSamples : 0u) | (gated ? wire::kGated : 0u) | again)) return;
  s.again = false;
  s.owes_ask &= !gated;
  if (gated) grammar_.row(number_, {s.key, s.slot, s.told + s.samples_out(), 1, s.forced()});
  step_->rows.push_back({sequence, s.slot, s.planned, s.planned + tokens, samples, false, s.proposes});
  step_->prompt_positions += tokens > 1 ? tokens : 0;
  time_.add(s.planned, tokens);
  has_newcomer_ |= arrives;
  s.planned += tokens;
  if (samples) ++s.expected;
  if (samples && s.drafts) {
    s.from_last = true;
    s.note_yields(1, 1);
  }
  ++s.plans_out;
}

/// The row may begin at any position from next_position() to `planned`, and none of them may lack its block.
/// It is gated if one of the tokens that it may yield is.
void StepPlanner::add_row_from_last(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  const std::int32_t room = s.blocks * worker_.block_tokens;
  s.expect_yields();
  s.planned = std::min(s.planned, room - 1);
  const std::int32_t end = std::min(s.max_length - 1, room);
  const std::int32_t tokens = builder_.fitting_from_last(
      s, std::min({s.again ? 1 : 1 + drafts_, end - s.planned, builder_.tokens_left()}));
  if (tokens <= 0 || !send_blocks(s)) return;
  const bool gated = s.grammar != 0 && (s.owes_ask || s.planned + tokens - s.prompt_tokens >= s.gated_from);
  const std::uint32_t flags = (gated ? wire::kGated : 0u) | (s.again ? wire::kAgain : 0u);
  if (!builder_.row(s, tokens, wire::kSamples | wire::kFromLast | flags)) return;
  s.again = false;
  s.owes_ask &= !gated;
  if (gated) grammar_.row(number_, {s.key, s.slot, s.told + s.samples_out(), tokens, s.forced()});
  step_->rows.push_back({sequence, s.slot, s.planned, s.planned + tokens, true, true, s.proposes});
  ++step_->decodes;
  time_.add(s.planned, 1);
  s.note_yields(tokens, 1);
  ++s.plans_out;
}

bool StepPlanner::send_blocks(ScheduledSequence& s) {
  if (!builder_.blocks(s.slot, s.blocks - static_cast<std::int32_t>(s.unsent_blocks.size()), s.unsent_blocks))
    return false;
  s.unsent_blocks.clear();
  return true;
}

}  // namespace troupe
