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
  count(s, 1);
}

void WaitingQueue::remove(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  (s.previous == kNoSequence ? head_ : table_[s.previous].next) = s.next;
  (s.next == kNoSequence ? tail_ : table_[s.next].previous) = s.previous;
  s.previous = s.next = kNoSequence;
  count(s, -1);
}

void WaitingQueue::count(const ScheduledSequence& s, std::int32_t times) {
  for (Load* load : {&all_, &foreground_}) {
    if (load == &foreground_ && s.background) continue;
    load->sequences += times;
    load->answers += s.sampling.embeds != 0 ? 0 : times;
    load->tokens += times * s.queued_tokens();
  }
}

}  // namespace troupe
