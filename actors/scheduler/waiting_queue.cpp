#include "actors/scheduler/waiting_queue.h"

namespace troupe {

void WaitingQueue::insert(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  // A new one belongs at the end; one that was put back is older than nearly all, so search from the head.
  std::uint32_t before = kNoSequence;
  if (tail_ != kNoSequence && s.before(table_[tail_])) {
    before = head_;
    while (table_[before].before(s)) before = table_[before].next;
  }
  s.next = before;
  s.previous = before == kNoSequence ? tail_ : table_[before].previous;
  (s.previous == kNoSequence ? head_ : table_[s.previous].next) = sequence;
  (s.next == kNoSequence ? tail_ : table_[s.next].previous) = sequence;
  ++size_;
  answers_ += s.sampling.embeds != 0 ? 0 : 1;
  tokens_ += s.queued_tokens();
}

void WaitingQueue::remove(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  (s.previous == kNoSequence ? head_ : table_[s.previous].next) = s.next;
  (s.next == kNoSequence ? tail_ : table_[s.next].previous) = s.previous;
  s.previous = s.next = kNoSequence;
  --size_;
  answers_ -= s.sampling.embeds != 0 ? 0 : 1;
  tokens_ -= s.queued_tokens();
}

}  // namespace troupe
