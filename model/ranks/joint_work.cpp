#include "model/ranks/joint_work.h"

namespace troupe::model {
namespace {

// A note: the item's number in the upper 24 bits, two flags, and how many parts were sent plus one. Numbers
// of two ranks are close, so that they may wrap.
constexpr int kNumberAt = 24;
constexpr std::uint64_t kCached = 1u << 23, kRefused = 1u << 22, kPartsMask = kRefused - 1;

/// Items that the rank of the note is ahead of `number`.
int ahead(std::uint64_t note, std::uint32_t number) {
  const auto theirs = static_cast<std::uint32_t>(note >> kNumberAt);
  return static_cast<std::int32_t>((theirs - number) << 8) >> 8;
}

bool has_come(std::uint64_t note, std::uint32_t number) { return note != 0 && ahead(note, number) >= 0; }

}  // namespace

void JointWork::begin(std::uint32_t number, bool cached) {
  number_ = number;
  cached_ = cached;
  refused_ = false;
  sent(0);
}

void JointWork::refuse(std::uint32_t number) {
  number_ = number;
  refused_ = true;
  leave(kRefused, 0);
}

void JointWork::sent(int parts) { leave(cached_ ? kCached : 0, parts); }

void JointWork::leave(std::uint64_t flags, int parts) {
  meeting_->leave_note(std::uint64_t{number_ & 0xffffff} << kNumberAt | flags |
                       static_cast<std::uint64_t>(parts + 1));
}

JointWork::Way JointWork::way() const {
  if (refused_) return Way::alone;
  bool all_cached = cached_, one_is_out = false;
  for (int rank = 0; rank < meeting_->ranks(); ++rank) {
    if (rank == meeting_->shard().rank) continue;
    const std::uint64_t note = meeting_->note_of(rank);
    if (!has_come(note, number_)) return Way::open;
    all_cached = all_cached && (note & kCached) != 0;
    one_is_out = one_is_out || (note & kRefused) != 0 || ahead(note, number_) > 0;
  }
  if (one_is_out) return cached_ ? Way::cached : Way::alone;
  return all_cached ? Way::cached : Way::together;
}

bool JointWork::have_sent(int parts) const {
  for (int rank = 0; rank < meeting_->ranks(); ++rank) {
    if (rank == meeting_->shard().rank) continue;
    const std::uint64_t note = meeting_->note_of(rank);
    if (!has_come(note, number_)) return false;
    if (ahead(note, number_) == 0 && (note & kPartsMask) < static_cast<std::uint64_t>(parts) + 1)
      return false;
  }
  return true;
}

}  // namespace troupe::model
