// take_asks() and granted(): admission, growth, and putting a sequence back.
#include <algorithm>

#include "actors/scheduler/scheduler.h"
#include "base/check.h"

namespace troupe {
namespace {

/// True for a running sequence that has no block for its next position.
bool blocked(const ScheduledSequence& s, std::int32_t block_tokens) {
  return s.refused && s.remaining() > 0 && s.planned >= s.blocks * block_tokens;
}

}  // namespace

/// False after a refusal until something was released.
bool Scheduler::may_ask(const ScheduledSequence& s) const {
  return !s.ask_open && !(s.refused && s.asked_at == released_);
}

void Scheduler::mark_asked(ScheduledSequence& s) {
  s.ask_open = true;
  s.asked_at = released_;
}

bool Scheduler::take_asks(CacheAsks& asks) {
  asks.epoch = epoch_;
  asks.releases.clear();
  asks.forks.clear();
  asks.grows.clear();
  asks.publishes.clear();
  asks.withdrawals.clear();
  asks.hashes.clear();
  asks.prefill_tokens_per_s = prefill_speed_.value();
  if (epoch_ == 0) return false;
  names_.take(asks);
  make_room();
  ask_releases(asks, false);
  ask_growth(asks);
  ask_releases(asks, true);
  return !(asks.releases.empty() && asks.forks.empty() && asks.grows.empty() && asks.publishes.empty() &&
           asks.withdrawals.empty());
}

/// Puts the last running or fetching sequence back when another one cannot go on and no release is pending.
void Scheduler::make_room() {
  if (!options_.preempts || ending_ > 0 || !releases_.empty()) return;
  std::uint32_t last = kNoSequence;
  bool needed = false;
  for (std::uint32_t i : running_) {
    const ScheduledSequence& s = table_[i];
    needed |= !s.ask_open && s.asked_at == released_ && blocked(s, limits_.block_tokens);
    if (last == kNoSequence || table_[last].before(s)) last = i;
  }
  if (!needed) return;
  for (std::uint32_t i : fetching_) {
    if (table_[last].before(table_[i])) last = i;
  }
  counters_.preempted();
  end(last, SequenceState::putting_back);
}

/// Adds releases: without `donors` all but those of donors; with it the rest, except leases that a fork in
/// `asks` copies from. These are released by a later call.
void Scheduler::ask_releases(CacheAsks& asks, bool donors) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < releases_.size(); ++i) {
    const Release release = releases_[i];
    const RequestKey* donor = release.group == kNoGroup ? nullptr : groups_.donor(release.group);
    const bool is_donor = donor != nullptr && *donor == release.key;
    const auto forks = [&](const ForkAsk& ask) { return ask.parent == release.key; };
    if (donors ? std::any_of(asks.forks.begin(), asks.forks.end(), forks) : is_donor) {
      releases_[kept++] = release;
      continue;
    }
    asks.releases.push_back(release.key);
    ++released_;
    if (release.group != kNoGroup) groups_.lease_ends(release.group, release.key, table_);
    const std::uint32_t put_back = table_.find(release.key);
    if (put_back != kNoSequence) table_[put_back].leased = false;
  }
  releases_.resize(kept);
}

void Scheduler::ask_growth(CacheAsks& asks) {
  bool starved = false;
  for (std::uint32_t i : running_) {
    ScheduledSequence& s = table_[i];
    if (s.held) continue;  // blocks that it cannot use yet are of use to other fronts
    const std::int32_t wanted = limits_.blocks_for(s.wanted_positions());
    if (wanted > s.blocks && may_ask(s)) {
      asks.grows.push_back({s.key, wanted, 0, {}});
      mark_asked(s);
    }
    starved |= s.refused;
  }
  if (!starved) ask_admissions(asks);  // running sequences come first
}

void Scheduler::granted(const CacheGrants& grants) {
  if (epoch_ == 0 || grants.epoch != epoch_) return;
  last_command_ = std::max(last_command_, grants.last_command);
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
  const bool admission = s.admitting;
  s.ask_open = s.admitting = false;
  s.refused = grant.refused;
  s.leased |= !grant.refused;
  if (admission) --admissions_open_;
  if (admission && s.group != kNoGroup && (grant.refused || s.state != SequenceState::waiting)) {
    groups_.add_active(s.group, -1);
  }
  if (s.state == SequenceState::ending || s.state == SequenceState::putting_back) {
    if (s.plans_out == 0) retire(sequence);
    return;
  }
  if (grant.refused) return;
  if (admission) {
    s.found = grant.cached;
    s.swapped = grant.swapped;
    admit(sequence, grant.fetching);
    if (!grant.fetching) begin_at(s);
  }
  s.unsent_blocks.insert(s.unsent_blocks.end(), blocks.begin(), blocks.end());
  s.blocks += grant.blocks;
}

void Scheduler::admit(std::uint32_t sequence, bool fetching) {
  ScheduledSequence& s = table_[sequence];
  for (std::uint32_t i = queue_.head(); i != sequence; i = queue_.after(i)) {
    if (table_[i].refused) ++table_[i].passed_over;
  }
  queue_.remove(sequence);
  s.state = fetching ? SequenceState::fetching : SequenceState::running;
  s.slot = slots_.take();
  s.passed_over = 0;
  (fetching ? fetching_ : running_).push_back(sequence);
  if (fetching) counters_.fetch_began();
}

/// An admitted sequence begins behind the positions that its lease holds already: those that it shares with
/// the other choices of its prompt, or the blocks that were found.
void Scheduler::begin_at(ScheduledSequence& s) {
  s.published = s.forks ? shared_positions(s) / limits_.block_tokens : s.found;
  s.planned = s.committed = s.forks ? shared_positions(s) : s.found * limits_.block_tokens;
  if (s.cached_tokens >= 0) return;  // admitted before
  s.cached_tokens = std::min(s.found * limits_.block_tokens, s.prompt_tokens);
  // The prompt is counted with the choice that computed it, and with the first submission of its request.
  if (s.forks || s.attempt > 0) return;
  counters_.admitted(s, std::min(s.swapped * limits_.block_tokens, s.cached_tokens));
}

/// The sequence may have ended, or been put back, while its blocks were fetched.
void Scheduler::fetched(const FetchOutcome& outcome) {
  const std::uint32_t sequence = table_.find(outcome.key);
  if (sequence == kNoSequence || table_[sequence].state != SequenceState::fetching) return;
  ScheduledSequence& s = table_[sequence];
  fetching_.erase(std::find(fetching_.begin(), fetching_.end(), sequence));
  if (!outcome.failed) {
    s.state = SequenceState::running;
    running_.push_back(sequence);
    return begin_at(s);
  }
  counters_.fetch_failed();
  ++released_;  // its lease is gone
  s.leased = false;
  if (s.group != kNoGroup) groups_.add_active(s.group, -1);
  slots_.give_back(s.slot);
  rewind(s);
  queue_.insert(sequence);
}

}  // namespace troupe
