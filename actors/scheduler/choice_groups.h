#pragma once
// Which sequences are choices of one prompt, and from whose lease the others may fork.
#include <cstdint>
#include <vector>

#include "actors/scheduler/sequence_table.h"
#include "base/ids.h"

namespace troupe {

/// A group lives from its first member to its last. Its donor is a lease that holds the prompt's KV
/// already and is not released yet; the sequence itself may be over.
class ChoiceGroups {
 public:
  std::uint32_t create();
  void join(std::uint32_t group, std::uint32_t sequence);

  /// The sequence is gone; the last one takes the group along unless a release of its donor is open.
  void leave(std::uint32_t group, std::uint32_t sequence);

  /// A member's prompt is computed: it becomes the donor when there is none.
  void prompt_ready(std::uint32_t group, const RequestKey& member);

  /// The lease is given up. Another member that still has the prompt's KV takes its place.
  void lease_ends(std::uint32_t group, const RequestKey& member, const ScheduledSequences& table);

  /// A member asks for admission or runs (+1), or does so no more (-1).
  void add_active(std::uint32_t group, int n) { groups_[group].active += n; }

  /// The lease to fork from, or null.
  const RequestKey* donor(std::uint32_t group) const {
    return groups_[group].has_donor ? &groups_[group].donor : nullptr;
  }
  /// Some member is on its way to be a donor: the others had better wait.
  bool wait(std::uint32_t group) const { return !groups_[group].has_donor && groups_[group].active > 0; }

  /// The worker is lost: no lease, nobody active.
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

/// Positions of its prompt that a choice shares with the others: it runs the last one itself.
inline std::int32_t shared_positions(const ScheduledSequence& s) { return s.prompt_tokens - 1; }

}  // namespace troupe
