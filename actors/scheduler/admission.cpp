#include "actors/scheduler/admission.h"

#include <algorithm>

namespace troupe {
namespace {

/// Most waiting sequences considered in one call.
constexpr int kMaxCandidates = 64;
/// With preemption, a part of the blocks that an admission leaves to those that run, one block for each at
/// most.
constexpr std::int32_t kKeptFreePart = 16;

/// Positions that a waiting sequence has to run, as far as is known before its admission.
std::int32_t positions_to_run(const ScheduledSequence& s, bool forks) {
  return s.expected - (forks ? shared_positions(s) : 0);
}

/// With prompt logprobs a choice runs its whole prompt itself.
bool may_fork(const ScheduledSequence& s) { return s.group != kNoGroup && s.sampling.prompt_logprobs < 0; }

}  // namespace

void Admission::Admitted::add(const ScheduledSequence& s, std::int32_t tokens, const WorkerLimits& worker) {
  ++sequences;
  background += s.background ? 1 : 0;
  const BlockNeed need = block_need(s, worker);
  blocks.prompt += need.prompt;
  blocks.answer += need.answer;
  if (tokens > 1) ++prompts;
  if (worker.is_long(tokens)) {
    ++long_prompts;
  } else if (tokens > 1) {
    short_tokens += tokens;
  }
  if (!is_suspect(s)) return;
  ++suspects;
  isolated_suspect |= s.isolated;
}

/// Counts running and fetching sequences and those that have asked for admission.
Admission::Admitted Admission::count(const ScheduledSequences& table, const SequenceLifecycle& life,
                                     const WorkerLimits& worker) const {
  Admitted admitted;
  for (std::uint32_t i : life.running()) admitted.add(table[i], table[i].positions_left(), worker);
  for (std::uint32_t i : life.fetching()) {
    admitted.add(table[i], table[i].expected - table[i].found * worker.block_tokens, worker);
  }
  std::int32_t open = open_;
  const WaitingQueue& queue = life.queue();
  for (std::uint32_t i = queue.head(); i != kNoSequence && open > 0; i = queue.after(i)) {
    const ScheduledSequence& s = table[i];
    if (!s.admitting) continue;
    admitted.add(s, positions_to_run(s, s.forks), worker);
    --open;
  }
  return admitted;
}

Admission::BlockNeed Admission::block_need(const ScheduledSequence& s, const WorkerLimits& worker) {
  const std::int32_t positions = s.max_length - 1;  // the last token is never run
  const std::int32_t prompt = worker.blocks_for(std::min(s.prompt_tokens, positions));
  return {prompt, worker.blocks_for(positions) - prompt};
}

/// True when prompts and answers keep to their shares of the blocks with one more sequence like this. One
/// that is larger than a share runs alone: the pool holds any single sequence.
bool Admission::reservable(const ScheduledSequence& s, const Admitted& admitted,
                           const WorkerLimits& worker) const {
  if (preempts_ || admitted.sequences == 0) return true;
  const BlockNeed need = block_need(s, worker);
  return admitted.blocks.prompt + need.prompt <= worker.prompt_blocks &&
         admitted.blocks.answer + need.answer <= worker.total_blocks - worker.prompt_blocks;
}

/// True when the limits allow one more sequence like this: short prompts are admitted until they fill two
/// steps, long ones by their number.
bool Admission::admissible(const ScheduledSequence& s, bool forks, const Admitted& admitted,
                           const WorkerLimits& worker) const {
  if (s.isolated ? admitted.suspects > 0 : s.losses > 0 && admitted.isolated_suspect) return false;
  if (s.background && admitted.background >= worker.background_slots) return false;
  const std::int32_t left = positions_to_run(s, forks);
  if (left > 1 && max_prompts_ > 0 && admitted.prompts >= max_prompts_) return false;
  if (worker.is_long(left)) return admitted.long_prompts < max_long_prompts_;
  return admitted.short_tokens < 2 * std::int64_t{worker.step_tokens};
}

void Admission::ask(ScheduledSequences& table, const SequenceLifecycle& life, ChoiceGroups& groups,
                    const Leases& leases, PrefixNames& names, MediaWork& media, const WorkerLimits& worker,
                    CacheAsks& asks) {
  std::int32_t slots = life.free_slots() - open_;
  const WaitingQueue& queue = life.queue();
  if (slots <= 0 || queue.size() == 0) return;
  Admitted admitted = count(table, life, worker);
  int looked_at = 0;
  bool foreground_waits = false;
  bool media_wait = false;  // one before has found too little room for its images
  const auto sees = [&](ScheduledSequence& s, bool forks) {
    if (s.media.items == nullptr) return true;
    media_wait = media_wait || !media.reserve(s, forks);
    return !media_wait;
  };
  for (std::uint32_t i = queue.head(); i != kNoSequence && slots > 0; i = queue.after(i)) {
    ScheduledSequence& s = table[i];
    if (++looked_at > kMaxCandidates || (s.background && foreground_waits)) return;
    const RequestKey* donor = may_fork(s) ? groups.donor(s.group) : nullptr;
    const bool asks_now = leases.may_ask(s) && !s.held && !s.leased &&
                          !(may_fork(s) && groups.wait(s.group)) &&
                          admissible(s, donor != nullptr, admitted, worker);
    if (asks_now && !reservable(s, admitted, worker)) {
      leases.refuse(s);  // others may pass it by, a bounded number of times
    } else if (asks_now && sees(s, donor != nullptr)) {
      const std::int32_t others = life.active() + open_;
      const std::int32_t keep_free = preempts_ ? std::min(others, worker.total_blocks / kKeptFreePart) : 0;
      const std::int32_t wanted = worker.blocks_for(s.wanted_positions(worker.max_drafts));
      if (donor != nullptr) {
        asks.forks.push_back({*donor, s.key, shared_positions(s), wanted, keep_free});
      } else {
        asks.grows.push_back({s.key, wanted, keep_free, names.name_contents(s, asks.hashes)});
      }
      s.forks = donor != nullptr;
      leases.mark_asked(s);
      s.admitting = true;
      ++open_;
      if (s.group != kNoGroup) groups.add_active(s.group, 1);
      admitted.add(s, positions_to_run(s, s.forks), worker);
      --slots;
    }
    foreground_waits |= !s.background && !s.held && !s.admitting;
    if (s.passed_over >= kMaxPassedOver) return;
  }
}

bool Admission::answered(ScheduledSequence& s, bool refused, ChoiceGroups& groups) {
  if (!s.admitting) return false;
  s.admitting = false;
  --open_;
  if (s.group != kNoGroup && (refused || s.state != SequenceState::waiting)) groups.add_active(s.group, -1);
  return true;
}

void Admission::begin(ScheduledSequence& s, const WorkerLimits& worker, SchedulerCounters& counters) {
  const std::int32_t found = s.found * worker.block_tokens;
  s.published = s.forks ? shared_positions(s) / worker.block_tokens : s.found;
  s.planned = s.committed = s.forks ? shared_positions(s) : found;
  if (s.cached_tokens >= 0) return;  // admitted before
  s.cached_tokens = std::min(found, s.prompt_tokens);
  // The prompt is counted with the choice that computed it, and with the first submission of its request.
  if (s.forks || s.attempt > 0) return;
  counters.admitted(s, std::min(s.swapped * worker.block_tokens, s.cached_tokens));
}

}  // namespace troupe
