#include "actors/scheduler/death_inquiry.h"

namespace troupe {

void DeathInquiry::begin(ScheduledSequence& s, bool alone) {
  s.isolated = alone;
  isolates_ |= alone;
}

void DeathInquiry::yielded(ScheduledSequence& s) const {
  s.proven = true;
  s.losses = 0;
  if (++s.life_tokens >= kForgivingTokens) s.short_lives = 0;
  s.isolated = s.isolated && s.short_lives >= kMaxShortLives;
}

void DeathInquiry::worker_lost(const ScheduledSequences& table) {
  in_flight_ = 0;
  for (std::uint32_t i = 0; i < table.places(); ++i) {
    in_flight_ += table[i].live && table[i].in_flight() ? 1 : 0;
  }
}

void DeathInquiry::tried_again(ScheduledSequence& s) {
  s.life_tokens = 0;
  if (!s.in_flight()) return;
  ++s.losses;
  ++s.short_lives;
  s.isolated = s.losses > 1 || !s.proven || s.short_lives >= kMaxShortLives;
  isolates_ |= s.isolated;
}

std::uint32_t DeathInquiry::find_isolated(const ScheduledSequences& table) {
  isolates_ = false;
  for (std::uint32_t i = 0; i < table.places(); ++i) {
    const ScheduledSequence& s = table[i];
    if (!s.live || !s.isolated) continue;
    isolates_ = true;
    if (s.active() && !(s.held && !s.in_flight())) return i;
  }
  return kNoSequence;
}

}  // namespace troupe
