// Submitting and cancelling, attaching and losing the worker.
#include "actors/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace troupe {
namespace {

constexpr const char* kPoisoned =
    "This request was being computed when two workers died one after the other; it is not tried again.";

}  // namespace

Scheduler::Scheduler(const config::SchedulerOptions& options, const PrefixCaching& caching,
                     std::size_t max_tokens_in_plan)
    : options_(options),
      rules_(options),
      builder_(max_tokens_in_plan),
      queue_(table_),
      names_(caching) {}

void Scheduler::attach(std::uint32_t epoch, const wire::Capacity& capacity, StepOutput& out) {
  TROUPE_CHECK(epoch != 0 && epoch_ == 0);
  out.clear();
  epoch_ = epoch;
  grammar_updates_.begin_epoch(epoch);
  limits_ = WorkerLimits::of(options_, capacity);
  slots_.reset(limits_.slots);
  steps_.attach(limits_.steps_in_flight);
  names_.attach(limits_);
  last_command_ = 0;
  prefill_speed_.forget();
  time_.attach(1e-3 * options_.max_prefill_step_ms, limits_.step_tokens, capacity.weight_bytes);

  for (std::uint32_t i = queue_.head(), next = kNoSequence; i != kNoSequence; i = next) {
    next = queue_.after(i);
    ScheduledSequence& s = table_[i];
    s.max_length = std::min(s.max_length, limits_.max_length);
    if (s.expected < s.max_length) continue;
    queue_.remove(i);
    fail(i, Finish::aborted, "The model's worker was restarted with too little room for this request.", out);
  }
}

void Scheduler::detach(Orphans orphans, const std::string& why, StepOutput& out) {
  out.clear();
  if (epoch_ == 0) return;
  epoch_ = 0;
  steps_.clear();
  admissions_open_ = ending_ = 0;
  running_.clear();
  fetching_.clear();
  finished_.clear();
  releases_.clear();
  names_.clear();
  groups_.forget_leases();
  inquiry_.worker_lost(table_);
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    ScheduledSequence& s = table_[i];
    if (!s.live) continue;
    const bool was_waiting = s.state == SequenceState::waiting;
    const bool poisonous = inquiry_.proves(s);
    if (s.state == SequenceState::ending) {
      forget(i);
    } else if (orphans == Orphans::fail || poisonous) {
      if (was_waiting) queue_.remove(i);
      fail(i, poisonous ? Finish::poisoned : Finish::aborted, poisonous ? kPoisoned : why, out);
    } else {
      inquiry_.tried_again(s);
      s.ask_open = s.admitting = s.leased = false;
      s.plans_out = 0;
      rewind(s);
      if (!was_waiting) queue_.insert(i);
    }
  }
}

Status Scheduler::submit(Submit& request, std::uint32_t front) {
  std::vector<SequenceSpec>& specs = request.sequences;
  std::vector<std::size_t> origin;
  if (Status status = rules_.check(request, limits_, table_, queue_, origin); !status.ok()) return status;

  std::vector<std::uint32_t> groups(specs.size(), kNoGroup);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (origin[i] == i) continue;
    std::uint32_t& group = groups[origin[i]];
    if (group == kNoGroup) group = groups_.create();
    groups[i] = group;
  }
  std::vector<KnownTokens::Given> prompts(specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    prompts[i] = origin[i] == i ? std::make_shared<const std::vector<TokenId>>(std::move(specs[i].prompt)) : prompts[origin[i]];
    enqueue(specs[i], prompts[i], groups[i], request, front);
  }
  return {};
}

void Scheduler::enqueue(SequenceSpec& spec, KnownTokens::Given prompt, std::uint32_t group, const Submit& request,
                        std::uint32_t front) {
  const std::uint32_t at = table_.create(spec.key);
  ScheduledSequence& s = table_[at];
  s.arrival = ++arrivals_;
  s.rank = (request.attempt > 0 ? 0 : static_cast<std::int64_t>(s.arrival)) + kPriorityWeight * request.priority;
  if (request.attempt > 0) s.arrived_ns = request.arrived_ns;
  s.attempt = request.attempt;
  s.front = front;
  s.destination = fronts_.destination(front, spec.host);
  s.held = fronts_.is_held(front);
  inquiry_.begin(s, request.alone);
  s.scored = spec.scored;
  s.tokens = KnownTokens(std::move(prompt), std::move(spec.output));
  s.shares_prompt = spec.parent != RequestKey{};
  s.prompt_tokens = spec.prompt_tokens;
  s.max_length = static_cast<std::int32_t>(
      std::min(std::int64_t{spec.prompt_tokens} + spec.max_output_tokens, std::int64_t{limits_.max_length}));
  s.sampling = spec.sampling;
  s.stop_ids = std::move(spec.stop_ids);
  s.logit_bias = std::move(spec.logit_bias);
  names_.begin(s, request.prefix);
  s.grammar = spec.grammar;
  s.gated_from = spec.gated_from;
  if (s.grammar != 0) {
    grammar_updates_.start(s.key, s.grammar);
    const auto begin = static_cast<std::size_t>(s.prompt_tokens);
    std::vector<TokenId> scratch;
    grammar_updates_.tokens(s.key, s.tokens.range(begin, s.tokens.size() - begin, scratch));
  }
  s.group = group;
  if (group != kNoGroup) groups_.join(group, at);
  rewind(s);
  queue_.insert(at);
}

void Scheduler::cancel(const RequestKey& key) {
  const std::uint32_t sequence = table_.find(key);
  if (sequence != kNoSequence) end(sequence, SequenceState::ending);
}

void Scheduler::hold(std::uint32_t front, bool on) { fronts_.hold(front, on, table_); }

void Scheduler::drop_front(std::uint32_t front) {
  for (std::uint32_t i = 0; i < table_.places(); ++i) {
    if (table_[i].live && table_[i].front == front) end(i, SequenceState::ending);
  }
  fronts_.drop(front);
}

void Scheduler::masks_late(const MasksLate& late) {
  if (epoch_ != 0 && late.epoch == epoch_) mark_masks_late(late.keys, table_);
}

void Scheduler::masks_made(const MasksMade& made) { mark_masks_made(made.keys, table_); }

/// Removes a sequence from the queue or the running ones. It stays in the table while a plan in flight or an
/// open ask names it.
void Scheduler::end(std::uint32_t sequence, SequenceState how) {
  ScheduledSequence& s = table_[sequence];
  if (s.state == SequenceState::ending) return;
  if (how == SequenceState::ending && s.grammar != 0) grammar_updates_.end(s.key);
  if (s.state == SequenceState::waiting) queue_.remove(sequence);
  if (s.state == SequenceState::running || s.state == SequenceState::fetching) {
    std::vector<std::uint32_t>& list = s.state == SequenceState::running ? running_ : fetching_;
    list.erase(std::find(list.begin(), list.end(), sequence));
    if (s.group != kNoGroup) groups_.add_active(s.group, -1);
  }
  if (s.state != SequenceState::putting_back) ++ending_;
  s.state = how;
  if (s.plans_out == 0 && !s.ask_open) retire(sequence);
}

/// No plan in flight and no ask names the sequence any more: frees its slot and its blocks.
void Scheduler::retire(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  --ending_;
  if (s.slot != SlotRef{}) {
    if (s.started) finished_.push_back(s.slot);
    slots_.give_back(s.slot);
  }
  if (s.leased && s.state == SequenceState::putting_back) {
    names_.park(s);
  } else if (s.leased && s.parked && !s.cacheable) {
    names_.withdraw(s);  // no other sequence knows their names
  }
  // One that was put back and ends before its release was sent has its release in the list already.
  const auto announced = [&](const Release& release) { return release.key == s.key; };
  if (s.leased && std::none_of(releases_.begin(), releases_.end(), announced)) {
    releases_.push_back({s.key, s.group});
  }
  if (s.state == SequenceState::putting_back) {
    rewind(s);
    queue_.insert(sequence);
  } else {
    forget(sequence);
  }
}

/// Resets a sequence so that it is computed from its first token again.
void Scheduler::rewind(ScheduledSequence& s) {
  s.state = SequenceState::waiting;
  s.started = s.refused = s.forks = s.proven = s.late = s.mask_made = s.again = false;
  s.planned = s.committed = s.known = s.sent = s.blocks = s.published = s.found = s.swapped = 0;
  s.expected = static_cast<std::int32_t>(s.tokens.size());
  s.slot = {};
  s.unsent_blocks.clear();
}

void Scheduler::forget(std::uint32_t sequence) {
  const ScheduledSequence& s = table_[sequence];
  if (s.group != kNoGroup) groups_.leave(s.group, sequence);
  table_.erase(sequence);
}

void Scheduler::fail(std::uint32_t sequence, Finish how, const std::string& why, StepOutput& out) {
  const ScheduledSequence& s = table_[sequence];
  if (s.grammar != 0) grammar_updates_.end(s.key);
  SequenceTokens& tokens = fronts_.report(table_[sequence], out);
  tokens.finish = how;
  tokens.error = why;
  forget(sequence);
}

}  // namespace troupe
