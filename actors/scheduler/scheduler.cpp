#include "actors/scheduler/scheduler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "actors/scheduler/late_masks.h"
#include "actors/scheduler/media_rules.h"
#include "base/check.h"

namespace troupe {
namespace {

constexpr const char* kMediaGone =
    "The images or videos of this request are not available any more; send it again.";
constexpr const char* kPoisoned =
    "This request was being computed when two workers died one after the other; it is not tried again.";

/// Of a row from a last token.
void report_drafts(const wire::ResultRow& row, SequenceTokens& tokens) {
  tokens.drafted = row.drafts;
  tokens.accepted = std::min(std::max(0, row.count - 1), tokens.tokens);
  if (row.predicted == 0) return;
  tokens.predicted_accepted = tokens.accepted;
  tokens.predicted_rejected = row.drafts - tokens.accepted;
}

}  // namespace

Scheduler::Scheduler(const config::SchedulerOptions& options, const PrefixCaching& caching,
                     std::size_t max_tokens_in_plan)
    : options_(options),
      rules_(options),
      admission_(options),
      names_(caching),
      media_(table_, names_),
      life_(table_, groups_, leases_, names_, grammar_updates_, media_),
      planner_(max_tokens_in_plan, table_, grammar_updates_, media_, counters_) {}

void Scheduler::attach(std::uint32_t epoch, const wire::Capacity& capacity, StepOutput& out) {
  TROUPE_CHECK(epoch != 0 && epoch_ == 0);
  out.clear();
  epoch_ = epoch;
  grammar_updates_.begin_epoch(epoch);
  limits_ = WorkerLimits::of(options_, capacity);
  life_.attach(limits_.slots);
  steps_.attach(limits_.steps_in_flight);
  names_.attach(limits_);
  leases_.attach();
  media_.attach(epoch, limits_.media_tokens);
  planner_.attach(epoch, limits_, 1e-3 * options_.max_prefill_step_ms, capacity.weight_bytes);

  const WaitingQueue& queue = life_.queue();
  for (std::uint32_t i = queue.head(), next = kNoSequence; i != kNoSequence; i = next) {
    next = queue.after(i);
    ScheduledSequence& s = table_[i];
    s.max_length = std::min(s.max_length, limits_.longest(s.sampling));
    note_worker(s);
    const bool embedded = s.sampling.embeds == 0 || s.embedding_width > 0;
    if (embedded && s.expected < s.max_length && media_fit(s.media.list(), limits_)) continue;
    fail(i, Finish::aborted, "The model's worker was restarted with too little room for this request.", out);
  }
}

void Scheduler::detach(Orphans orphans, const std::string& why, StepOutput& out) {
  out.clear();
  if (epoch_ == 0) return;
  epoch_ = 0;
  steps_.clear();
  admission_.clear();
  leases_.clear();
  names_.clear();
  media_.worker_lost();
  life_.worker_lost();
  inquiry_.worker_lost(table_);
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    ScheduledSequence& s = table_[i];
    if (!s.live) continue;
    if (s.state == SequenceState::ending) {
      life_.forget(i);
    } else if (inquiry_.proves(s)) {
      fail(i, Finish::poisoned, kPoisoned, out);
    } else if (orphans == Orphans::fail) {
      fail(i, Finish::aborted, why, out);
    } else {
      inquiry_.tried_again(s);
      life_.restart(i);
    }
  }
}

/// Requires that the sequence is waiting, or that the worker was lost.
void Scheduler::fail(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out) {
  report_end(table_[sequence], how, why, out);
  life_.fail(sequence);
}

/// The sequence may be named by plans in flight.
void Scheduler::end(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out) {
  if (table_[sequence].state == SequenceState::ending) return;
  report_end(table_[sequence], how, why, out);
  life_.end(sequence, SequenceState::ending);
}

void Scheduler::report_end(ScheduledSequence& s, Finish how, const std::string& why, StepOutput& out) const {
  SequenceTokens& tokens = fronts_.report(s, out);
  tokens.finish = how;
  out.hosts[s.destination].step.set_error(tokens, why);
}

Status Scheduler::submit(Submit& request, std::uint32_t front) {
  std::vector<SequenceSpec>& specs = request.sequences;
  std::vector<std::size_t> origin;
  if (Status status = rules_.check(request, limits_, table_, life_.queue(), origin); !status.ok())
    return status;

  std::vector<std::uint32_t> groups(specs.size(), kNoGroup);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (origin[i] == i) continue;
    std::uint32_t& group = groups[origin[i]];
    if (group == kNoGroup) group = groups_.create();
    groups[i] = group;
  }
  std::vector<Prompt> prompts(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (origin[i] == i) {
      prompts[i].ids = std::make_shared<const std::vector<TokenId>>(std::move(specs[i].prompt));
      if (!specs[i].media.empty())
        prompts[i].media = std::make_shared<const std::vector<SequenceItem>>(std::move(specs[i].media));
      if (!specs[i].prediction.empty())
        prompts[i].predicted = std::make_shared<const std::vector<TokenId>>(std::move(specs[i].prediction));
    } else {
      prompts[i] = prompts[origin[i]];
    }
    enqueue(specs[i], prompts[i], groups[i], request, front);
  }
  return {};
}

void Scheduler::enqueue(SequenceSpec& spec, Prompt prompt, std::uint32_t group, const Submit& request,
                        std::uint32_t front) {
  const std::uint32_t at = table_.create(spec.key);
  ScheduledSequence& s = table_[at];
  s.arrival = ++arrivals_;
  s.rank =
      (request.attempt > 0 ? 0 : static_cast<std::int64_t>(s.arrival)) + kPriorityWeight * request.priority;
  if (request.attempt > 0) s.arrived_ns = request.arrived_ns;
  s.background = request.background;
  s.hands_over = request.hands_over;
  if (s.background) s.rank += kBackgroundRank;
  s.attempt = request.attempt;
  s.front = front;
  s.destination = fronts_.destination(front, spec.host);
  s.held = fronts_.is_held(front);
  inquiry_.begin(s, request.alone);
  s.scored = spec.scored;
  s.tokens = KnownTokens(std::move(prompt.ids), std::move(spec.output));
  s.media.items = std::move(prompt.media);
  s.predicted = std::move(prompt.predicted);
  s.shares_prompt = spec.parent != RequestKey{};
  s.prompt_tokens = spec.prompt_tokens;
  s.max_length = static_cast<std::int32_t>(std::min(std::int64_t{spec.prompt_tokens} + spec.max_output_tokens,
                                                    std::int64_t{limits_.longest(spec.sampling)}));
  s.sampling = spec.sampling;
  s.stop_ids = StopIds(std::move(spec.stop_ids));
  s.logit_bias = std::move(spec.logit_bias);
  names_.begin(s, request.prefix);
  s.grammar = spec.grammar;
  s.gated_from = spec.gated_from;
  if (s.grammar != 0) {
    grammar_updates_.start(s.key, s.grammar, s.gated_from);
    const auto begin = static_cast<std::size_t>(s.prompt_tokens);
    std::vector<TokenId> scratch;
    if (s.tokens.size() > begin) tell_grammar(s, s.tokens.range(begin, s.tokens.size() - begin, scratch));
  }
  note_worker(s);
  s.group = group;
  life_.enqueue(at);
}

/// What the worker offers it. Requires that it is not started.
void Scheduler::note_worker(ScheduledSequence& s) const {
  s.embedding_width = s.sampling.embeds != 0 ? limits_.embedding_width : 0;
  s.proposes = s.grammar != 0 ? limits_.max_proposed : 0;
  s.drafts = s.sampling.embeds == 0 && (s.grammar != 0 ? s.proposes > 0 : limits_.max_drafts > 0);
}

void Scheduler::tell_grammar(ScheduledSequence& s, std::span<const TokenId> ids,
                             std::span<const TokenId> drafts) {
  if (s.grammar == 0) return;
  grammar_updates_.tokens(s.key, ids, drafts);
  ++s.told;
}

void Scheduler::cancel(const RequestKey& key) {
  const std::uint32_t sequence = table_.find(key);
  if (sequence != kNoSequence) life_.end(sequence, SequenceState::ending);
}

void Scheduler::hold(std::uint32_t front, bool on) { fronts_.hold(front, on, table_); }

void Scheduler::drop_front(std::uint32_t front) {
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (table_[i].live && table_[i].front == front) life_.end(i, SequenceState::ending);
  }
  fronts_.drop(front);
}

bool Scheduler::serves(std::uint32_t front) const {
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (table_[i].live && table_[i].front == front) return true;
  }
  return false;
}

void Scheduler::masks_late(const MasksLate& late) {
  if (epoch_ != 0 && late.epoch == epoch_) mark_masks_late(late.keys, table_);
}

void Scheduler::masks_made(const MasksMade& made) { mark_masks_made(made.keys, table_); }

void Scheduler::form_lost(const FormLost& lost, StepOutput& out) {
  out.clear();
  const std::uint32_t sequence = table_.find(lost.key);
  if (sequence != kNoSequence)
    end(sequence, lost.too_complex ? Finish::too_complex : Finish::error, lost.why, out);
}

std::span<const std::byte> Scheduler::plan(std::int64_t now_ns) {
  if (epoch_ == 0 || (life_.running().empty() && !media_.frees_by_plan())) return {};
  const std::uint32_t isolated = inquiry_.isolated(table_);
  if (isolated == kNoSequence || steps_.has_only(isolated)) media_.ask(life_.running(), isolated);
  if (steps_.full() || admits_foreground()) return {};
  return planner_.plan(life_, steps_, isolated, leases_.last_command(), now_ns);
}

Committed Scheduler::media_done(std::span<const std::byte> bytes, StepOutput& out) {
  out.clear();
  const MediaWork::Ended ended = media_.done(bytes);
  switch (ended.verdict) {
    case MediaWork::Verdict::ignored: return Committed::stale;
    case MediaWork::Verdict::malformed: return Committed::malformed;
    case MediaWork::Verdict::encoded: counters_.encoded(ended.seconds, ended.cached); break;
    case MediaWork::Verdict::failed: end(ended.sequence, Finish::error, kMediaGone, out); break;
  }
  return Committed::applied;
}

Committed Scheduler::commit(std::span<const std::byte> bytes, StepOutput& out) {
  out.clear();
  const Committed verdict = result_.read(bytes, epoch_, steps_, limits_.vocab_size);
  if (verdict != Committed::applied) {
    counters_.result_dropped(verdict);
    return verdict;
  }
  const PlannedStep& step = steps_.pop();
  media_.freed(step.freed_media_tokens);
  out.stats = counters_.take_since_step();
  std::size_t next_result = 0;
  yields_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const wire::ResultRow* result = step.rows[i].samples ? &result_.rows()[next_result++] : nullptr;
    if (step.rows[i].from_last) yields_.push_back(result->count);
    commit_row(i, step.rows[i], result, out);
  }
  out.stats.running = running();
  out.stats.waiting = waiting();
  out.stats.step_s = result_.seconds();
  if (step.work.pairs > 0) out.stats.predicted_s = step.predicted_s;
  planner_.learn(step, yields_, out.stats.step_s, result_.pause_s());
  return Committed::applied;
}

void Scheduler::commit_row(std::size_t index, const PlannedRow& row, const wire::ResultRow* result,
                           StepOutput& out) {
  ScheduledSequence& s = table_[row.sequence];
  TROUPE_CHECK(s.live && s.slot == row.slot && s.plans_out > 0);
  --s.plans_out;
  const auto known = static_cast<std::int32_t>(s.tokens.size());
  if (row.from_last) {
    // What was sampled last has not run.
    const bool counts = !s.late && result->error == wire::RowError::none;
    s.committed = known + (counts ? result->count : 0) - 1;
  } else {
    // A late sequence runs its last known token again.
    s.committed = s.late ? std::min(row.end, known - 1) : row.end;
  }
  if (s.media.items != nullptr) media_.advanced(s);
  out.stats.prompt_tokens += std::max(0, std::min(row.end, s.prompt_tokens) - row.begin);
  if (result == nullptr || result->error == wire::RowError::none) {
    names_.publish_full_blocks(s);
  } else if (s.cacheable || s.parked) {
    names_.withdraw(s);
    s.cacheable = false;
  }
  if (s.state == SequenceState::ending) {
    if (result != nullptr) counters_.tokens_discarded(row.from_last ? result->count : 1);
    life_.retire_if_unused(row.sequence);
    return;
  }
  if (s.group != kNoGroup && s.committed >= shared_positions(s)) groups_.prompt_ready(s.group, s.key);
  if (s.late && result != nullptr) {
    counters_.tokens_discarded(std::max(1, result->count));
    result = nullptr;
  }

  const bool yields = result != nullptr && (result->error != wire::RowError::none || result->count > 0);
  Finish finish = Finish::none;
  if (result != nullptr && !yields) tell_grammar(s, {});
  if (yields || result_.is_scored(index, s)) {
    SequenceTokens& tokens = fronts_.report(s, out);
    StepTokens& step = out.hosts[s.destination].step;
    if (yields && result->error != wire::RowError::none) {
      step.set_error(tokens, sentence(result->error));
      finish = Finish::error;
    } else if (yields && !result_.pass_embedding(s, tokens, step)) {
      step.set_error(tokens, "The worker's result lacks the embedding of this input.");
      finish = Finish::error;
    } else if (yields) {
      for (const TokenId token : result_.tokens(*result)) {
        step.tokens.push_back(token);
        ++tokens.tokens;
        finish = take_token(s, token);
        if (finish != Finish::none) break;
      }
      const auto taken = static_cast<std::size_t>(tokens.tokens);
      tell_grammar(s, result_.tokens(*result).first(taken), result_.proposed(*result));
      if (row.from_last) {
        report_drafts(*result, tokens);
        counters_.drafted(*result, tokens.tokens, out.stats);
      }
      out.stats.generated_tokens += tokens.tokens;
      counters_.tokens_discarded(result->count - tokens.tokens);
    }
    result_.pass_scores(index, s, step);
    tokens.scores = static_cast<std::int32_t>(step.scores.size()) - tokens.first_score;
    tokens.finish = finish;
  }
  if (row.samples && s.drafts) s.note_yields(row.from_last ? row.end - row.begin : 1, -1);
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
  inquiry_.yielded(s);
  if (s.stop_ids.contains(token)) return Finish::stop;
  return static_cast<std::int32_t>(s.tokens.size()) >= s.max_length ? Finish::length : Finish::none;
}

bool Scheduler::take_asks(CacheAsks& asks) {
  asks.epoch = epoch_;
  asks.releases.clear();
  asks.forks.clear();
  asks.grows.clear();
  asks.publishes.clear();
  asks.withdrawals.clear();
  asks.hashes.clear();
  asks.prefill_tokens_per_s = planner_.prefill_tokens_per_s();
  if (epoch_ == 0) return false;
  names_.take(asks);
  make_room();
  yield_to_foreground();
  leases_.ask_releases(false, groups_, table_, asks);
  // Running sequences come first: while one lacks blocks none is admitted.
  if (!leases_.ask_growth(life_.running(), table_, limits_, asks)) {
    admission_.ask(table_, life_, groups_, leases_, names_, media_, limits_, asks);
  }
  leases_.ask_releases(true, groups_, table_, asks);
  return !(asks.releases.empty() && asks.forks.empty() && asks.grows.empty() && asks.publishes.empty() &&
           asks.withdrawals.empty());
}

/// Puts the last running or fetching sequence back when another one cannot go on and no release is pending.
void Scheduler::make_room() {
  if (!options_.preempts || life_.has_ending() || leases_.release_pending()) return;
  const std::vector<std::uint32_t>& running = life_.running();
  const auto starves = [&](std::uint32_t i) { return leases_.starves(table_[i], limits_.block_tokens); };
  if (std::none_of(running.begin(), running.end(), starves)) return;
  counters_.preempted();
  life_.end(life_.last_in_order(), SequenceState::putting_back);
}

/// True when background sequences are put back until this waiting one, the first of the others, gets its
/// blocks.
bool Scheduler::yields_to(const ScheduledSequence& s) const {
  return options_.preempts && s.refused && !leases_.may_ask(s);
}

/// Puts background sequences back, the last first, while more others wait than there are slots free, or
/// becoming free; and one at a time while the first that waits is refused its blocks.
void Scheduler::yield_to_foreground() {
  std::int32_t background = life_.background();
  if (!options_.preempts || background == 0) return;
  const WaitingQueue& queue = life_.queue();
  const std::int32_t slots = life_.free_slots() - admission_.open() + life_.ending();
  std::int32_t wanted = 0;
  bool starves = false;
  for (std::uint32_t i = queue.head(); i != kNoSequence && !table_[i].background; i = queue.after(i)) {
    if (table_[i].held || table_[i].admitting) continue;
    starves |= wanted == 0 && yields_to(table_[i]);
    if (++wanted >= background + std::max(0, slots)) break;
  }
  std::int32_t missing = wanted - slots;
  if (starves && !life_.has_ending() && !leases_.release_pending()) missing = std::max(missing, 1);
  for (; missing > 0 && background > 0; --missing, --background) {
    counters_.preempted();
    life_.end(life_.last_in_order(), SequenceState::putting_back);
  }
}

/// True while only background sequences run and another is about to be admitted: it asks, or asks again
/// behind the releases of take_asks(), for which one of those that run may still be put back. The answer to
/// these asks, or the result of a step in flight, is followed by the next plan.
bool Scheduler::admits_foreground() const {
  const auto is_background = [this](std::uint32_t i) { return table_[i].background; };
  const std::vector<std::uint32_t>& running = life_.running();
  if (running.empty() || !std::ranges::all_of(running, is_background)) return false;
  const WaitingQueue& queue = life_.queue();
  bool first = true;
  for (std::uint32_t i = queue.head(); i != kNoSequence && !table_[i].background; i = queue.after(i)) {
    if (table_[i].admitting) return true;
    if (table_[i].held) continue;
    if (leases_.release_pending() || (first && yields_to(table_[i]))) return true;
    first = false;
  }
  return false;
}

void Scheduler::granted(const CacheGrants& grants) {
  if (epoch_ == 0 || grants.epoch != epoch_) return;
  leases_.note_command(grants.last_command);
  for (const Grant& grant : grants.grants) {
    const std::uint32_t sequence = table_.find(grant.key);
    TROUPE_CHECK(sequence != kNoSequence && table_[sequence].ask_open);
    answered(
        sequence, grant,
        std::span(grants.blocks)
            .subspan(static_cast<std::size_t>(grant.first_block), static_cast<std::size_t>(grant.blocks)));
  }
  for (const FetchOutcome& outcome : grants.fetched) fetched(outcome);
}

void Scheduler::answered(std::uint32_t sequence, const Grant& grant, std::span<const BlockId> blocks) {
  ScheduledSequence& s = table_[sequence];
  leases_.answer(s, grant);
  const bool admission = admission_.answered(s, grant.refused, groups_);
  if (admission && grant.refused) media_.give_back(s);
  if (s.state == SequenceState::ending || s.state == SequenceState::putting_back) {
    life_.retire_if_unused(sequence);
    return;
  }
  if (grant.refused) return;
  if (admission) {
    s.found = grant.cached;
    s.swapped = grant.swapped;
    life_.admit(sequence, grant.fetching);
    if (grant.fetching) {
      counters_.fetch_began();
    } else {
      begin(s);
    }
  }
  add_blocks(s, blocks);
}

/// The sequence may have ended, or been put back, while its blocks were fetched.
void Scheduler::fetched(const FetchOutcome& outcome) {
  const std::uint32_t sequence = table_.find(outcome.key);
  if (sequence == kNoSequence || table_[sequence].state != SequenceState::fetching) return;
  life_.fetched(sequence, outcome.failed);
  if (outcome.failed) {
    counters_.fetch_failed();
  } else {
    begin(table_[sequence]);
  }
}

void Scheduler::begin(ScheduledSequence& s) {
  Admission::begin(s, limits_, counters_);
  media_.begin(s);
}

}  // namespace troupe
