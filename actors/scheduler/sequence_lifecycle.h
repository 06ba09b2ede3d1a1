#pragma once
// The states that a sequence goes through, from its submission until it is gone.
//
//   submit ─▶ waiting ──(blocks granted)──▶ running ──(stop, length, cancel, error)──▶ ending ─▶ gone
//               ▲ │                          ▲ │                                         ▲
//               │ └▶ fetching ──(arrived)────┘ │                                         │
//               └────────(drained)────── put back ◀──(blocks ran out, it is the youngest)┘
#include <cstdint>
#include <vector>

#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/grammar_updates.h"
#include "actors/scheduler/leases.h"
#include "actors/scheduler/media_work.h"
#include "actors/scheduler/prefix_names.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/waiting_queue.h"

namespace troupe {

/// Owns the queue, the lists of running and fetching sequences, and the worker's slots; each sequence of the
/// table is in the one of them that ScheduledSequence::state names. A sequence that ends is `ending` until no
/// plan in flight names its slot and no ask about it is open. Only then its slot is reused (with a new
/// generation) and its blocks are released, so that neither a late result nor a copy on the cache ring can
/// refer to another sequence's slot or block. The same holds for one that is put back.
///
/// Borrows the table, and the parts that have to know when a sequence leaves a state.
class SequenceLifecycle {
 public:
  SequenceLifecycle(ScheduledSequences& table, ChoiceGroups& groups, Leases& leases, PrefixNames& names,
                    GrammarUpdates& grammar, MediaWork& media)
      : table_(table),
        groups_(groups),
        leases_(leases),
        names_(names),
        grammar_(grammar),
        media_(media),
        queue_(table) {}

  /// A new worker with so many slots. Requires that no sequence runs.
  void attach(std::int32_t slots) { slots_.reset(slots); }
  /// The worker is lost: nothing runs or is fetched. Then call for each sequence forget(), if it is ending,
  /// or fail(), or restart().
  void worker_lost();

  const WaitingQueue& queue() const { return queue_; }
  const std::vector<std::uint32_t>& running() const { return running_; }    ///< in order of admission
  const std::vector<std::uint32_t>& fetching() const { return fetching_; }  ///< likewise
  std::int32_t active() const { return static_cast<std::int32_t>(running_.size() + fetching_.size()); }
  std::int32_t free_slots() const { return slots_.free_slots(); }
  /// Running and fetching background sequences.
  std::int32_t background() const { return background_; }
  /// Sequences that have left their places and may still have a slot.
  std::int32_t ending() const { return ending_; }
  /// True while a sequence that has left its place may still free blocks.
  bool has_ending() const { return ending_ > 0; }
  /// The running or fetching sequence that comes last in the order of the queue. Requires that one runs.
  std::uint32_t last_in_order() const;

  /// A new sequence; its place in the queue and its group are set.
  void enqueue(std::uint32_t sequence);
  /// Its blocks are granted: it takes a slot. Requires a free one. Those that it overtakes in the queue
  /// because they were refused have been passed over once more.
  void admit(std::uint32_t sequence, bool fetching);
  /// The copies for a fetching sequence have ended: it runs, or, when one has failed and its lease is gone,
  /// waits again.
  void fetched(std::uint32_t sequence, bool failed);
  /// Removes a sequence from the queue or the active ones. `how`: ending or putting_back. Does nothing for
  /// one that is ending.
  void end(std::uint32_t sequence, SequenceState how);
  /// Requires a sequence that is ending or put back: frees slot and blocks if no plan in flight and no ask
  /// names it.
  void retire_if_unused(std::uint32_t sequence) {
    const ScheduledSequence& s = table_[sequence];
    if (s.plans_out == 0 && !s.ask_open) retire(sequence);
  }
  /// Ends a sequence at once. Requires that it is waiting, or that the worker was lost.
  void fail(std::uint32_t sequence);
  /// After a lost worker: the sequence waits again, to be computed from its first token.
  void restart(std::uint32_t sequence);
  /// Removes it from the table. Requires that no list has it.
  void forget(std::uint32_t sequence);

  /// Slots of ended sequences that the worker has to forget; they go into the next plan.
  const std::vector<SlotRef>& finished_slots() const { return finished_; }
  void finished_slots_sent() { finished_.clear(); }

 private:
  void retire(std::uint32_t sequence);

  ScheduledSequences& table_;
  ChoiceGroups& groups_;
  Leases& leases_;
  PrefixNames& names_;
  GrammarUpdates& grammar_;
  MediaWork& media_;

  WaitingQueue queue_;
  SlotTable slots_;
  std::vector<std::uint32_t> running_;
  std::vector<std::uint32_t> fetching_;
  std::vector<SlotRef> finished_;
  std::int32_t ending_ = 0;      ///< sequences in states ending and putting_back
  std::int32_t background_ = 0;  ///< of running_ and fetching_
};

}  // namespace troupe
