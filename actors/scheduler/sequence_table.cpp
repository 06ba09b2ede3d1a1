#include "actors/scheduler/sequence_table.h"

#include <utility>

#include "base/check.h"

namespace troupe {

std::uint32_t ScheduledSequences::create(const RequestKey& key) {
  std::uint32_t at = static_cast<std::uint32_t>(places_.size());
  if (unused_.empty()) {
    places_.emplace_back();
  } else {
    at = unused_.back();
    unused_.pop_back();
  }
  TROUPE_CHECK(index_.emplace(key, at).second);
  places_[at].live = true;
  places_[at].key = key;
  return at;
}

void ScheduledSequences::erase(std::uint32_t sequence) {
  ScheduledSequence& place = places_[sequence];
  TROUPE_CHECK(place.live);
  index_.erase(place.key);
  ScheduledSequence empty;  // what it held may be large: that memory goes back
  empty.unsent_blocks = std::move(place.unsent_blocks);
  empty.unsent_blocks.clear();
  place = std::move(empty);
  unused_.push_back(sequence);
}

std::uint32_t ScheduledSequences::find(const RequestKey& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? kNoSequence : found->second;
}

void SlotTable::reset(std::int32_t slots) {
  generations_.assign(static_cast<std::size_t>(slots), 0);
  free_.clear();
  for (std::int32_t slot = slots - 1; slot >= 0; --slot) free_.push_back(static_cast<std::uint32_t>(slot));
}

SlotRef SlotTable::take() {
  TROUPE_CHECK(!free_.empty());
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return {slot, ++generations_[slot]};
}

}  // namespace troupe
