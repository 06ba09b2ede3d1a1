#include "actors/session/cached_names.h"

#include <algorithm>

namespace troupe {

void CachedNames::refresh() {
  if (table_ == nullptr) return;
  const std::uint64_t memory = table_->memory();
  if (memory != memory_ || memory == 0) {
    memory_ = memory;
    seen_.clear();
    blocks_.clear();
    if (memory == 0) return;
  }
  const auto end = static_cast<std::size_t>(table_->end());
  for (std::size_t i = end; i < seen_.size(); ++i) forget(seen_[i]);
  seen_.resize(end);
  for (std::size_t i = 0; i < end; ++i) {
    const auto block = static_cast<BlockId>(i);
    const std::uint64_t state = table_->state(block);
    if (state == seen_[i].state) continue;
    forget(seen_[i]);
    seen_[i].state = state;  // a change after this is seen by the next refresh()
    ipc::BlockName now;
    if (!table_->read(block, now)) continue;
    seen_[i].name = now.hash;
    ++blocks_[now.hash];
  }
}

void CachedNames::forget(Seen& seen) {
  if (seen.name == BlockHash{}) return;
  const auto known = blocks_.find(std::exchange(seen.name, BlockHash{}));
  if (--known->second == 0) blocks_.erase(known);
}

void RecentNames::put(const BlockHash& name, std::uint32_t engine) {
  if (const auto known = index_.find(name); known != index_.end()) {
    known->second->engine = engine;
    entries_.splice(entries_.begin(), entries_, known->second);
    return;
  }
  entries_.push_front({name, engine});
  index_.emplace(name, entries_.begin());
  if (entries_.size() <= kMost) return;
  index_.erase(entries_.back().name);
  entries_.pop_back();
}

std::optional<std::uint32_t> RecentNames::engine_of(const BlockHash& name) const {
  const auto known = index_.find(name);
  return known == index_.end() ? std::nullopt : std::optional(known->second->engine);
}

}  // namespace troupe
