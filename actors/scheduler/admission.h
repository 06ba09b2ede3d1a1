#pragma once
// Which waiting sequences ask for admission, and where an admitted one begins.
#include <cstdint>

#include "actors/messages.h"
#include "actors/scheduler/choice_groups.h"
#include "actors/scheduler/death_inquiry.h"
#include "actors/scheduler/leases.h"
#include "actors/scheduler/media_work.h"
#include "actors/scheduler/prefix_names.h"
#include "actors/scheduler/scheduler_counters.h"
#include "actors/scheduler/sequence_lifecycle.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/worker_limits.h"
#include "config/options.h"

namespace troupe {

/// Admission asks for the blocks of the whole prompt at once, in queue order. So a sequence is overtaken by a
/// bounded number of later ones. A sequence that does not fit is passed over, at most kMaxPassedOver times;
/// then no other is admitted before it. Sequences that a limit holds back are passed by: they wait for
/// sequences of their own kind, whose order is kept. Few long prompts are computed at once
/// (max_long_partial_prefills); short ones overtake those that wait for that. Sequences with images wait for
/// memory of the encoder's output (media_work.h), in order; others overtake them. Without preemption
/// (SchedulerOptions::preempts) admission waits until the blocks of the prompt and of the longest answer fit
/// into what others have not reserved; then no running sequence lacks a block. Background sequences are not
/// asked for while another waits.
class Admission {
 public:
  /// How often a sequence may be overtaken.
  static constexpr std::int32_t kMaxPassedOver = 16;

  explicit Admission(const config::SchedulerOptions& options)
      : preempts_(options.preempts),
        max_prompts_(options.max_num_partial_prefills),
        max_long_prompts_(options.max_long_partial_prefills) {}

  /// The worker is lost: no ask is open.
  void clear() { open_ = 0; }
  /// Asks that are not answered; each has a slot in prospect.
  std::int32_t open() const { return open_; }

  /// Asks for the admission of as many sequences as there are free slots, less those of open asks.
  void ask(ScheduledSequences& table, const SequenceLifecycle& life, ChoiceGroups& groups,
           const Leases& leases, PrefixNames& names, MediaWork& media, const WorkerLimits& worker,
           CacheAsks& asks);
  /// The sequence's ask is answered, and it may have ended meanwhile. True if it was an ask for admission.
  bool answered(ScheduledSequence& sequence, bool refused, ChoiceGroups& groups);
  /// The admitted sequence begins behind the positions that its lease holds already: those that it shares
  /// with the other choices of its prompt, or the blocks that were found. Counts what was found at its first
  /// admission.
  static void begin(ScheduledSequence& sequence, const WorkerLimits& worker, SchedulerCounters& counters);

 private:
  /// KV blocks that sequences need until they end at their maximum length, each counted as if it shared none.
  struct BlockNeed {
    std::int64_t prompt = 0;
    std::int64_t answer = 0;
  };
  /// Prompts that are admitted, or asked for, and not computed yet.
  struct Admitted {
    std::int64_t short_tokens = 0;  ///< positions left of the short ones
    std::int32_t prompts = 0;
    std::int32_t long_prompts = 0;
    std::int32_t suspects = 0;
    bool isolated_suspect = false;
    std::int32_t sequences = 0;
    std::int32_t background = 0;
    BlockNeed blocks;  ///< what they may need in all

    void add(const ScheduledSequence& sequence, std::int32_t tokens, const WorkerLimits& worker);
  };

  static BlockNeed block_need(const ScheduledSequence& sequence, const WorkerLimits& worker);
  Admitted count(const ScheduledSequences& table, const SequenceLifecycle& life,
                 const WorkerLimits& worker) const;
  bool reservable(const ScheduledSequence& sequence, const Admitted& admitted,
                  const WorkerLimits& worker) const;
  bool admissible(const ScheduledSequence& sequence, bool forks, const Admitted& admitted,
                  const WorkerLimits& worker) const;

  const bool preempts_;
  const std::int32_t max_prompts_;  ///< 0: no limit
  const std::int32_t max_long_prompts_;
  std::int32_t open_ = 0;  ///< asks that are not answered
};

}  // namespace troupe
