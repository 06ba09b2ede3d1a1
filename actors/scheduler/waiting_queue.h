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
  std::int32_t size() const { return size_; }
  /// Of these, all but those that are embedded.
  std::int32_t answers() const { return answers_; }
  /// Tokens of all waiting sequences.
  std::int64_t tokens() const { return tokens_; }

 private:
  ScheduledSequences& table_;
  std::uint32_t head_ = kNoSequence;
  std::uint32_t tail_ = kNoSequence;
  std::int32_t size_ = 0;
  std::int32_t answers_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace troupe
