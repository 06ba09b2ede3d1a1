#pragma once
// What the CACHE MANAGER is asked for on behalf of running sequences, and which leases it has to release.
#include <cstdint>
#include <span>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/worker_limits.h"

namespace troupe {

/// A sequence has at most one ask open. A refused one is repeated only after a lease was released. Blocks are
/// asked for one step ahead. Which of a sequence's flags an ask and its answer set is decided here alone:
/// ask_open, refused, asked_at, leased.
class Leases {
 public:
  /// A new worker: no cache command has been named.
  void attach() { last_command_ = 0; }
  /// The worker is lost, and all leases with it.
  void clear() { releases_.clear(); }

  /// False while its ask is open, and after a refusal until something was released.
  bool may_ask(const ScheduledSequence& s) const {
    return !s.ask_open && !(s.refused && s.asked_at == released_);
  }
  void mark_asked(ScheduledSequence& sequence) const;
  /// Refuses on the CACHE MANAGER's behalf, without an ask: the same rules for asking again hold.
  void refuse(ScheduledSequence& sequence) const;
  /// Takes the answer to the sequence's ask. The sequence gets its blocks with add_blocks(), if it still
  /// wants them.
  void answer(ScheduledSequence& sequence, const Grant& grant);

  /// Asks for the blocks of the next steps, where running sequences lack them. Held ones are left out: blocks
  /// that they cannot use yet are of use to other fronts. True if one of the others was refused: it comes
  /// before admissions.
  bool ask_growth(const std::vector<std::uint32_t>& running, ScheduledSequences& table,
                  const WorkerLimits& worker, CacheAsks& asks) const;
  /// True if the sequence has no block for its next position and was refused one since the last release.
  bool starves(const ScheduledSequence& sequence, std::int32_t block_tokens) const;

  /// The sequence's lease is not needed any more. Does nothing without one, or when its release is pending
  /// already: one that was put back may end before its release was sent.
  void release(const ScheduledSequence& sequence);
  bool release_pending() const { return !releases_.empty(); }
  /// The CACHE MANAGER has released the lease itself.
  void lost(ScheduledSequence& sequence);
  /// Adds releases: without `donors` all but those of donors; with it the rest, except leases that a fork in
  /// `asks` copies from. These are released by a later call.
  void ask_releases(bool donors, ChoiceGroups& groups, ScheduledSequences& table, CacheAsks& asks);

  /// The newest cache command that an answer named: plans that use granted blocks depend on it.
  std::uint64_t last_command() const { return last_command_; }
  void note_command(std::uint64_t command);

 private:
  struct Release {
    RequestKey key{};
    std::uint32_t group = kNoGroup;
  };

  std::vector<Release> releases_;  ///< not sent yet
  std::uint64_t released_ = 0;     ///< leases released so far; a refused ask is repeated when it has risen
  std::uint64_t last_command_ = 0;
};

/// Appends granted blocks to the sequence's table.
void add_blocks(ScheduledSequence& sequence, std::span<const BlockId> blocks);

}  // namespace troupe
