#include "actors/cache/cached_names.h"

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
  for (std::size_t i = end; i < seen_.size(); ++i) forget(i);
  seen_.resize(end);
  for (std::size_t i = 0; i < end; ++i) {
    const auto block = static_cast<BlockId>(i);
    const std::uint64_t state = table_->state(block);
    if (state == seen_[i].state) continue;
    forget(i);
    seen_[i].state = state;  // a change after this is seen by the next refresh()
    ipc::BlockName now;
    if (!table_->read(block, now)) continue;
    seen_[i].name = now.hash;
    blocks_.emplace(now.hash, block);
  }
}

BlockId CachedNames::find(const BlockHash& name) const {
  const auto known = blocks_.find(name);
  return known == blocks_.end() ? kNoBlock : known->second;
}

void CachedNames::forget(std::size_t block) {
  const BlockHash name = std::exchange(seen_[block].name, BlockHash{});
  if (name == BlockHash{}) return;
  const auto [first, last] = blocks_.equal_range(name);
  blocks_.erase(std::find_if(
      first, last, [block](const auto& entry) { return entry.second == static_cast<BlockId>(block); }));
}

}  // namespace troupe
