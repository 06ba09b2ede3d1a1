#pragma once
// Which sequences are choices of one prompt, and whose lease the others may fork.
#include <cstdint>
#include <vector>

#include "actors/scheduler/sequence_table.h"
#include "base/ids.h"

namespace troupe {

/// The choices of one prompt (n > 1) form a group. The first to run is its leader; the others wait until
/// the leader's prompt is committed, then fork its lease at prompt_tokens − 1 positions, and each runs the
/// last prompt token itself, to sample a first token of its own.
///
/// A group exists while it has members. Its donor is a lease that holds the prompt's KV and is not released
/// yet; the sequence of that lease may have ended.
class ChoiceGroups {
 public:
  std::uint32_t create();
  void join(std::uint32_t group, std::uint32_t sequence);

  /// A member is gone. The group is deleted with its last member, unless a release of its donor is pending.
  void leave(std::uint32_t group, std::uint32_t sequence);

  /// A member's prompt is computed. It becomes the donor when there is none.
  void prompt_ready(std::uint32_t group, const RequestKey& member);

  /// A lease is released. If it was the donor, another member that still has the prompt's KV takes its place.
  void lease_ends(std::uint32_t group, const RequestKey& member, const ScheduledSequences& table);

  /// A member begins to ask for admission or to run (+1), or stops (-1).
  void add_active(std::uint32_t group, int n) { groups_[group].active += n; }

  /// The lease to fork from, or null.
  const RequestKey* donor(std::uint32_t group) const {
    return groups_[group].has_donor ? &groups_[group].donor : nullptr;
  }
  /// True if a member will become the donor: the others wait for it.
  bool wait(std::uint32_t group) const { return !groups_[group].has_donor && groups_[group].active > 0; }

  /// The worker is lost: no lease and no active member is left.
  void forget_leases();

 private:
  struct Group {
    std::vector<std::uint32_t> members;
    RequestKey donor{};
    bool has_donor = false;
    std::int32_t active = 0;
  };
  std::vector<Group> groups_;
  std::vector<std::uint32_t> unused_;
};

/// Prompt positions that a choice shares with the others. It runs the last one itself.
inline std::int32_t shared_positions(const ScheduledSequence& s) { return s.prompt_tokens - 1; }

}  // namespace troupe
