#include "actors/scheduler/choice_groups.h"

#include <algorithm>

namespace troupe {

std::uint32_t ChoiceGroups::create() {
  if (unused_.empty()) {
    groups_.emplace_back();
    return static_cast<std::uint32_t>(groups_.size() - 1);
  }
  const std::uint32_t group = unused_.back();
  unused_.pop_back();
  groups_[group].active = 0;
  return group;
}

void ChoiceGroups::join(std::uint32_t group, std::uint32_t sequence) {
  groups_[group].members.push_back(sequence);
}

void ChoiceGroups::leave(std::uint32_t group, std::uint32_t sequence) {
  Group& g = groups_[group];
  std::erase(g.members, sequence);
  if (g.members.empty() && !g.has_donor) unused_.push_back(group);
}

void ChoiceGroups::prompt_ready(std::uint32_t group, const RequestKey& member) {
  Group& g = groups_[group];
  if (g.has_donor) return;
  g.donor = member;
  g.has_donor = true;
}

void ChoiceGroups::lease_ends(std::uint32_t group, const RequestKey& member,
                              const ScheduledSequences& table) {
  Group& g = groups_[group];
  if (!g.has_donor || g.donor != member) return;
  g.has_donor = false;
  for (std::uint32_t other : g.members) {
    const ScheduledSequence& s = table[other];
    if (s.active() && s.committed >= shared_positions(s)) return prompt_ready(group, s.key);
  }
  if (g.members.empty()) unused_.push_back(group);
}

void ChoiceGroups::forget_leases() {
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    Group& g = groups_[group];
    if (g.has_donor && g.members.empty()) unused_.push_back(group);
    g.has_donor = false;
    g.active = 0;
  }
}

}  // namespace troupe
