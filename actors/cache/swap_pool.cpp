#include "actors/cache/swap_pool.h"

#include "base/check.h"

namespace troupe {

SwapPool::SwapPool(std::int32_t total)
    : entries_(static_cast<std::size_t>(total)), index_(total), cached_(total) {
  free_.reserve(entries_.size());
  for (BlockId block = total - 1; block >= 0; --block) free_.push_back(block);
}

BlockId SwapPool::find(const BlockHash& hash) const {
  const BlockId block = index_.find(hash);
  return block == kNoBlock || at(block).saving ? kNoBlock : block;
}

BlockId SwapPool::begin_save(const BlockHash& hash) {
  TROUPE_CHECK(hash != BlockHash{} && can_save());
  BlockId block = cached_.oldest();
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    cached_.remove(block);
    index_.erase(at(block).hash);
    ++evicted_;
  }
  Entry& entry = at(block);
  entry.hash = hash;
  entry.saving = true;
  entry.copies = 1;
  ++moving_;
  index_.insert(hash, block);
  return block;
}

/// The last copy has ended: the block is cached or free from now on.
void SwapPool::settle(BlockId block) {
  --moving_;
  if (at(block).hash != BlockHash{}) {
    cached_.append(block);
  } else {
    free_.push_back(block);
  }
}

void SwapPool::forget_contents(BlockId block) {
  Entry& entry = at(block);
  if (entry.hash == BlockHash{}) return;
  index_.erase(entry.hash);
  entry.hash = {};
}

void SwapPool::end_save(BlockId block, bool ok) {
  Entry& entry = at(block);
  TROUPE_CHECK(entry.saving);
  entry.saving = false;
  entry.copies = 0;
  if (!ok) forget_contents(block);
  settle(block);
}

void SwapPool::begin_fetch(BlockId block) {
  Entry& entry = at(block);
  TROUPE_CHECK(!entry.saving && entry.hash != BlockHash{});
  if (entry.copies++ > 0) return;
  cached_.remove(block);
  ++moving_;
}

void SwapPool::end_fetch(BlockId block, bool ok) {
  Entry& entry = at(block);
  TROUPE_CHECK(!entry.saving && entry.copies > 0);
  if (!ok) forget_contents(block);
  if (--entry.copies == 0) settle(block);
}

void SwapPool::forget(const BlockHash& hash) {
  const BlockId block = index_.find(hash);
  if (block == kNoBlock) return;
  forget_contents(block);
  if (at(block).copies > 0) return;
  cached_.remove(block);
  free_.push_back(block);
}

void SwapPool::forget() {
  while (cached_.size() > 0) {
    free_.push_back(cached_.oldest());
    cached_.remove(cached_.oldest());
  }
  index_.clear();
  for (Entry& entry : entries_) entry.hash = {};
}

SwapStatus SwapPool::status() const {
  SwapStatus status;
  status.total = static_cast<std::int32_t>(entries_.size());
  status.free = static_cast<std::int32_t>(free_.size());
  status.cached = cached_.size();
  status.moving = moving_;
  status.evicted = evicted_;
  return status;
}

bool SwapPool::sound() const {
  std::vector<bool> seen(entries_.size());
  const auto first_time = [&](BlockId block) {
    const std::size_t i = static_cast<std::size_t>(block);
    return entries_[i].copies == 0 && !seen[i] && (seen[i] = true);
  };
  for (BlockId block : free_) {
    if (!first_time(block) || at(block).hash != BlockHash{}) return false;
  }
  std::int32_t cached = 0, moving = 0, found = 0;
  for (BlockId block = cached_.oldest(), older = kNoBlock; block != kNoBlock;
       older = block, block = cached_.newer(block)) {
    if (!first_time(block) || cached_.older(block) != older || at(block).hash == BlockHash{}) return false;
    ++cached;
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    moving += entries_[i].copies > 0 ? 1 : 0;
    if (entries_[i].saving && entries_[i].copies != 1) return false;
    if (entries_[i].hash == BlockHash{}) continue;
    if (index_.find(entries_[i].hash) != static_cast<BlockId>(i)) return false;
    ++found;
  }
  const SwapStatus s = status();
  return cached == cached_.size() && moving == moving_ && found == index_.size() &&
         s.free + s.cached + s.moving == s.total;
}

}  // namespace troupe
