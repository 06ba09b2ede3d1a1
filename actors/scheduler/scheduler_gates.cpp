// Sequences whose masks are late.
#include "actors/scheduler/scheduler.h"

namespace troupe {

void Scheduler::masks_late(const MasksLate& late) {
  if (epoch_ == 0 || late.epoch != epoch_) return;
  for (const RequestKey& key : late.keys) {
    const std::uint32_t at = table_.find(key);
    if (at == kNoSequence || table_[at].state == SequenceState::ending) continue;
    table_[at].late = true;
    table_[at].mask_made = false;
  }
}

void Scheduler::masks_made(const MasksMade& made) {
  for (const RequestKey& key : made.keys) {
    const std::uint32_t at = table_.find(key);
    if (at == kNoSequence || !table_[at].late)
      continue;  // it was put back, or the worker was lost: it asks again
    table_[at].mask_made = true;
    go_on(table_[at]);
  }
}

/// Plans a late sequence again from its last known token, once no plan in flight names it and its mask has
/// been made.
void Scheduler::go_on(ScheduledSequence& s) {
  if (!s.late || !s.mask_made || s.plans_out > 0 || !s.active()) return;
  s.late = s.mask_made = false;
  s.again = true;
  s.expected = static_cast<std::int32_t>(s.tokens.size());
  s.planned = s.expected - 1;
}

}  // namespace troupe
