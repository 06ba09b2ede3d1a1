#include "actors/scheduler/sequence_lifecycle.h"

#include <algorithm>

namespace troupe {
namespace {

/// Resets a sequence so that it is computed from its first token again.
void rewind(ScheduledSequence& s) {
  s.state = SequenceState::waiting;
  s.started = s.refused = s.forks = s.proven = s.late = s.mask_made = s.again = s.from_last = false;
  s.yields_most = s.yields_least = 0;
  s.planned = s.committed = s.known = s.sent = s.blocks = s.published = s.found = s.swapped = 0;
  s.expected = static_cast<std::int32_t>(s.tokens.size());
  s.slot = {};
  s.unsent_blocks.clear();
  s.media.rewind();
}

}  // namespace

void SequenceLifecycle::worker_lost() {
  running_.clear();
  fetching_.clear();
  finished_.clear();
  ending_ = background_ = 0;
  groups_.forget_leases();
}

std::uint32_t SequenceLifecycle::last_in_order() const {
  std::uint32_t last = running_.front();
  for (const std::vector<std::uint32_t>* list : {&running_, &fetching_}) {
    for (std::uint32_t i : *list) {
      if (table_[last].before(table_[i])) last = i;
    }
  }
  return last;
}

void SequenceLifecycle::enqueue(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  if (s.group != kNoGroup) groups_.join(s.group, sequence);
  rewind(s);
  queue_.insert(sequence);
}

void SequenceLifecycle::admit(std::uint32_t sequence, bool fetching) {
  for (std::uint32_t i = queue_.head(); i != sequence; i = queue_.after(i)) {
    if (table_[i].refused) ++table_[i].passed_over;
  }
  queue_.remove(sequence);
  ScheduledSequence& s = table_[sequence];
  s.state = fetching ? SequenceState::fetching : SequenceState::running;
  s.slot = slots_.take();
  s.passed_over = 0;
  (fetching ? fetching_ : running_).push_back(sequence);
  background_ += s.background ? 1 : 0;
}

void SequenceLifecycle::fetched(std::uint32_t sequence, bool failed) {
  ScheduledSequence& s = table_[sequence];
  fetching_.erase(std::find(fetching_.begin(), fetching_.end(), sequence));
  if (!failed) {
    s.state = SequenceState::running;
    running_.push_back(sequence);
    return;
  }
  background_ -= s.background ? 1 : 0;
  leases_.lost(s);
  media_.give_back(s);
  if (s.group != kNoGroup) groups_.add_active(s.group, -1);
  slots_.give_back(s.slot);
  rewind(s);
  queue_.insert(sequence);
}

void SequenceLifecycle::end(std::uint32_t sequence, SequenceState how) {
  ScheduledSequence& s = table_[sequence];
  if (s.state == SequenceState::ending) return;
  if (how == SequenceState::ending && s.grammar != 0) grammar_.end(s.key);
  if (s.state == SequenceState::waiting) queue_.remove(sequence);
  if (s.state == SequenceState::running || s.state == SequenceState::fetching) {
    std::vector<std::uint32_t>& list = s.state == SequenceState::running ? running_ : fetching_;
    list.erase(std::find(list.begin(), list.end(), sequence));
    background_ -= s.background ? 1 : 0;
    if (s.group != kNoGroup) groups_.add_active(s.group, -1);
  }
  if (s.state != SequenceState::putting_back) ++ending_;
  s.state = how;
  retire_if_unused(sequence);
}

/// No plan in flight and no ask names the sequence any more: frees its slot and its blocks.
void SequenceLifecycle::retire(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  --ending_;
  if (s.slot != SlotRef{}) {
    if (s.started || s.media.announced) finished_.push_back(s.slot);
    slots_.give_back(s.slot);
  }
  media_.leave(s, s.media.announced);
  if (s.leased && s.state == SequenceState::putting_back) {
    names_.park(s);
  } else if (s.leased && s.parked && !s.cacheable) {
    names_.withdraw(s);  // no other sequence knows their names
  }
  leases_.release(s);
  if (s.state == SequenceState::putting_back) {
    rewind(s);
    queue_.insert(sequence);
  } else {
    forget(sequence);
  }
}

void SequenceLifecycle::fail(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  if (s.grammar != 0) grammar_.end(s.key);
  if (s.state == SequenceState::waiting) queue_.remove(sequence);
  forget(sequence);
}

void SequenceLifecycle::restart(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  const bool was_waiting = s.state == SequenceState::waiting;
  s.ask_open = s.admitting = s.leased = false;
  s.plans_out = 0;
  rewind(s);
  if (!was_waiting) queue_.insert(sequence);
}

void SequenceLifecycle::forget(std::uint32_t sequence) {
  const ScheduledSequence& s = table_[sequence];
  if (s.group != kNoGroup) groups_.leave(s.group, sequence);
  table_.erase(sequence);
}

}  // namespace troupe
