#include "actors/scheduler/leases.h"

#include <algorithm>

namespace troupe {

void Leases::mark_asked(ScheduledSequence& s) const {
  s.ask_open = true;
  s.asked_at = released_;
}

void Leases::refuse(ScheduledSequence& s) const {
  s.refused = true;
  s.asked_at = released_;
}

void Leases::answer(ScheduledSequence& s, const Grant& grant) {
  s.ask_open = false;
  s.refused = grant.refused;
  s.leased |= !grant.refused;
}

bool Leases::ask_growth(const std::vector<std::uint32_t>& running, ScheduledSequences& table,
                        const WorkerLimits& worker, CacheAsks& asks) const {
  bool starved = false;
  for (std::uint32_t i : running) {
    ScheduledSequence& s = table[i];
    if (s.held) continue;
    const std::int32_t wanted = s.wanted_positions(worker.max_drafts);
    if (wanted > s.blocks * worker.block_tokens && may_ask(s)) {
      asks.grows.push_back({s.key, worker.blocks_for(wanted), 0, {}});
      mark_asked(s);
    }
    starved |= s.refused;
  }
  return starved;
}

bool Leases::starves(const ScheduledSequence& s, std::int32_t block_tokens) const {
  const bool refused = s.refused && !s.ask_open && s.asked_at == released_;
  return refused && s.remaining() > 0 && s.next_position() >= s.blocks * block_tokens;
}

void Leases::release(const ScheduledSequence& s) {
  if (!s.leased) return;
  const auto pending = [&](const Release& release) { return release.key == s.key; };
  if (std::none_of(releases_.begin(), releases_.end(), pending)) releases_.push_back({s.key, s.group});
}

void Leases::lost(ScheduledSequence& s) {
  ++released_;
  s.leased = false;
}

void Leases::ask_releases(bool donors, ChoiceGroups& groups, ScheduledSequences& table, CacheAsks& asks) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < releases_.size(); ++i) {
    const Release release = releases_[i];
    const RequestKey* donor = release.group == kNoGroup ? nullptr : groups.donor(release.group);
    const bool is_donor = donor != nullptr && *donor == release.key;
    const auto forks = [&](const ForkAsk& ask) { return ask.parent == release.key; };
    if (donors ? std::any_of(asks.forks.begin(), asks.forks.end(), forks) : is_donor) {
      releases_[kept++] = release;
      continue;
    }
    asks.releases.push_back(release.key);
    ++released_;
    if (release.group != kNoGroup) groups.lease_ends(release.group, release.key, table);
    const std::uint32_t put_back = table.find(release.key);
    if (put_back != kNoSequence) table[put_back].leased = false;
  }
  releases_.resize(kept);
}

void Leases::note_command(std::uint64_t command) { last_command_ = std::max(last_command_, command); }

void add_blocks(ScheduledSequence& s, std::span<const BlockId> blocks) {
  s.unsent_blocks.insert(s.unsent_blocks.end(), blocks.begin(), blocks.end());
  s.blocks += static_cast<std::int32_t>(blocks.size());
}

}  // namespace troupe
