#pragma once
// The table of sequences, and the worker's slots.
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "actors/scheduler/sequence.h"

namespace troupe {

/// Sequences by index and by key. A free entry holds no large memory. Only create() may move sequences.
class ScheduledSequences {
 public:
  /// A fresh sequence under a key that is not in the table.
  std::uint32_t create(const RequestKey& key);
  void erase(std::uint32_t sequence);

  /// kNoSequence when there is none.
  std::uint32_t find(const RequestKey& key) const;

  ScheduledSequence& operator[](std::uint32_t sequence) { return places_[sequence]; }
  const ScheduledSequence& operator[](std::uint32_t sequence) const { return places_[sequence]; }
  std::size_t size() const { return index_.size(); }
  /// Number of entries; each may be in use (`live`) or free.
  std::uint32_t places() const { return static_cast<std::uint32_t>(places_.size()); }

 private:
  std::vector<ScheduledSequence> places_;
  std::vector<std::uint32_t> unused_;
  std::unordered_map<RequestKey, std::uint32_t> index_;
};

/// The worker's slots. A slot's generation rises with every sequence that takes it; reset() starts again at
/// 0.
class SlotTable {
 public:
  void reset(std::int32_t slots);
  std::int32_t free_slots() const { return static_cast<std::int32_t>(free_.size()); }
  /// The free slot with the lowest number among those freed last. Requires free_slots() > 0.
  SlotRef take();
  void give_back(SlotRef slot) { free_.push_back(slot.slot); }

 private:
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_;
};

}  // namespace troupe
