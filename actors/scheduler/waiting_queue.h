#pragma once
// The sequences that wait for a slot and blocks, in order of submission.
#include <cstdint>

#include "actors/scheduler/sequence_table.h"

namespace troupe {

/// Doubly linked through ScheduledSequence::previous and next; allocates nothing. Borrows the table.
class WaitingQueue {
 public:
  explicit WaitingQueue(ScheduledSequences& table) : table_(table) {}

  /// Inserts it behind all that come before it: with equal priorities a new one at the end, one that was put
  /// back near the head.
  void insert(std::uint32_t sequence);
  void remove(std::uint32_t sequence);

  std::uint32_t head() const { return head_; }
  std::uint32_t after(std::uint32_t sequence) const { return table_[sequence].next; }
  std::int32_t size() const { return all_.sequences; }

  /// What waits, as limits count it.
  struct Load {
    std::int32_t sequences = 0;
    std::int32_t answers = 0;  ///< of these, all but those that are embedded
    std::int64_t tokens = 0;
  };
  const Load& all() const { return all_; }
  /// Without background sequences.
  const Load& foreground() const { return foreground_; }

 private:
  void count(const ScheduledSequence& sequence, std::int32_t times);

  ScheduledSequences& table_;
  std::uint32_t head_ = kNoSequence;
  std::uint32_t tail_ = kNoSequence;
  Load all_;
  Load foreground_;
};

}  // namespace troupe
