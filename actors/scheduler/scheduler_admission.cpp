// Which waiting sequences ask for admission.
#include <algorithm>

#include "actors/scheduler/scheduler.h"

namespace troupe {
namespace {

/// Most waiting sequences considered in one call.
constexpr int kMaxCandidates = 64;

/// Positions that a waiting sequence has to run, as far as is known before its admission.
std::int32_t positions_to_run(const ScheduledSequence& s, bool forks) {
  return s.expected - (forks ? shared_positions(s) : 0);
}

/// With prompt logprobs a choice runs its whole prompt itself.
bool may_fork(const ScheduledSequence& s) { return s.group != kNoGroup && s.sampling.prompt_logprobs < 0; }

}  // namespace

void Scheduler::Admissions::add(const ScheduledSequence& s, std::int32_t tokens, bool is_long,
                                const BlockNeed& need) {
  ++sequences;
  blocks.prompt += need.prompt;
  blocks.answer += need.answer;
  if (tokens > 1) ++prompts;
  if (is_long) {
    ++long_prompts;
  } else if (tokens > 1) {
    short_tokens += tokens;
  }
  if (!is_suspect(s)) return;
  ++suspects;
  isolated_suspect |= s.isolated;
}

/// Counts running and fetching sequences and those that have asked for admission.
Scheduler::Admissions Scheduler::count_admitted() const {
  Admissions admitted;
  for (std::uint32_t i : running_) {
    const std::int32_t left = table_[i].positions_left();
    admitted.add(table_[i], left, limits_.is_long(left), block_need(table_[i]));
  }
  for (std::uint32_t i : fetching_) {
    const std::int32_t left = table_[i].expected - table_[i].found * limits_.block_tokens;
    admitted.add(table_[i], left, limits_.is_long(left), block_need(table_[i]));
  }
  std::int32_t open = admissions_open_;
  for (std::uint32_t i = queue_.head(); i != kNoSequence && open > 0; i = queue_.after(i)) {
    const ScheduledSequence& s = table_[i];
    if (!s.admitting) continue;
    const std::int32_t left = positions_to_run(s, s.forks);
    admitted.add(s, left, limits_.is_long(left), block_need(s));
    --open;
  }
  return admitted;
}

Scheduler::BlockNeed Scheduler::block_need(const ScheduledSequence& s) const {
  const std::int32_t positions = s.max_length - 1;  // the last token is never run
  const std::int32_t prompt = limits_.blocks_for(std::min(s.prompt_tokens, positions));
  return {prompt, limits_.blocks_for(positions) - prompt};
}

/// True when prompts and answers keep to their shares of the blocks with one more sequence like this. One
/// that is larger than a share runs alone: the pool holds any single sequence.
bool Scheduler::reservable(const ScheduledSequence& s, const Admissions& admitted) const {
  if (options_.preempts || admitted.sequences == 0) return true;
  const BlockNeed need = block_need(s);
  return admitted.blocks.prompt + need.prompt <= limits_.prompt_blocks &&
         admitted.blocks.answer + need.answer <= limits_.total_blocks - limits_.prompt_blocks;
}

/// True when the limits allow one more sequence like this: short prompts are admitted until they fill two
/// steps, long ones by their number.
bool Scheduler::admissible(const ScheduledSequence& s, const Admissions& admitted) const {
  if (s.isolated ? admitted.suspects > 0 : s.losses > 0 && admitted.isolated_suspect) return false;
  const bool forks = may_fork(s) && groups_.donor(s.group) != nullptr;
  const std::int32_t left = positions_to_run(s, forks);
  const std::int32_t most = options_.max_num_partial_prefills;
  if (left > 1 && most > 0 && admitted.prompts >= most) return false;
  if (limits_.is_long(left)) return admitted.long_prompts < options_.max_long_partial_prefills;
  return admitted.short_tokens < 2 * std::int64_t{limits_.step_tokens};
}

void Scheduler::ask_admission(std::uint32_t sequence, CacheAsks& asks) {
  ScheduledSequence& s = table_[sequence];
  const std::int32_t others = running() + admissions_open_;
  const std::int32_t keep_free = options_.preempts ? std::min(others, limits_.total_blocks / 16) : 0;
  const std::int32_t wanted = limits_.blocks_for(s.wanted_positions());
  const RequestKey* donor = may_fork(s) ? groups_.donor(s.group) : nullptr;
  if (donor != nullptr) {
    asks.forks.push_back({*donor, s.key, shared_positions(s), wanted, keep_free});
  } else {
    asks.grows.push_back({s.key, wanted, keep_free, names_.name_contents(s, asks.hashes)});
  }
  s.forks = donor != nullptr;
  mark_asked(s);
  s.admitting = true;
  ++admissions_open_;
  if (s.group != kNoGroup) groups_.add_active(s.group, 1);
}

/// Asks for admission in queue order, for as many sequences as there are slots. Those that a limit holds back
/// are passed by: they wait for sequences of their own kind, whose order is kept.
void Scheduler::ask_admissions(CacheAsks& asks) {
  std::int32_t slots = slots_.free_slots() - admissions_open_;
  if (slots <= 0 || queue_.size() == 0) return;
  Admissions admitted = count_admitted();
  int looked_at = 0;
  for (std::uint32_t i = queue_.head(); i != kNoSequence && slots > 0; i = queue_.after(i)) {
    ScheduledSequence& s = table_[i];
    if (++looked_at > kMaxCandidates) return;
    const bool asks_now =
        may_ask(s) && !s.held && !s.leased && !(may_fork(s) && groups_.wait(s.group)) && admissible(s, admitted);
    if (asks_now && !reservable(s, admitted)) {
      s.refused = true;  // as by the CACHE MANAGER: others may pass it by, a bounded number of times
      s.asked_at = released_;
    } else if (asks_now) {
      ask_admission(i, asks);
      const std::int32_t left = positions_to_run(s, s.forks);
      admitted.add(s, left, limits_.is_long(left), block_need(s));
      --slots;
    }
    if (s.passed_over >= kMaxPassedOver) return;
  }
}

}  // namespace troupe
