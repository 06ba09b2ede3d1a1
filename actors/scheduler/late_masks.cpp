#include "actors/scheduler/late_masks.h"

namespace troupe {

void mark_masks_late(std::span<const RequestKey> keys, ScheduledSequences& table) {
  for (const RequestKey& key : keys) {
    const std::uint32_t at = table.find(key);
    if (at == kNoSequence || table[at].state == SequenceState::ending) continue;
    table[at].late = table[at].owes_ask = true;
    table[at].mask_made = false;
  }
}

void mark_masks_made(std::span<const RequestKey> keys, ScheduledSequences& table) {
  for (const RequestKey& key : keys) {
    const std::uint32_t at = table.find(key);
    if (at == kNoSequence || !table[at].late) continue;
    table[at].mask_made = true;
    run_late_position_again(table[at]);
  }
}

void run_late_position_again(ScheduledSequence& s) {
  if (!s.mask_made || s.plans_out > 0 || !s.active()) return;
  s.late = s.mask_made = false;
  s.again = true;
  s.expected = static_cast<std::int32_t>(s.tokens.size());
  s.planned = s.expected - 1;
}

}  // namespace troupe
