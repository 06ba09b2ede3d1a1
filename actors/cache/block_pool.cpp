#include "actors/cache/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace troupe {

BlockPool::BlockPool(std::int32_t total, ipc::BlockNames* names)
    : names_(names), entries_(static_cast<std::size_t>(total)), index_(total), cached_(total) {
  free_.reserve(entries_.size());
  for (BlockId block = total - 1; block >= 0; --block) free_.push_back(block);
}

void BlockPool::restore() {
  TROUPE_CHECK(names_ != nullptr && free_.size() == entries_.size());
  std::vector<BlockId> found;
  ipc::BlockName name;
  for (BlockId block = 0, end = names_->end(); block < end; ++block) {
    if (!names_->read(block, name)) continue;
    if (static_cast<std::size_t>(block) >= entries_.size() || index_.find(name.hash) != kNoBlock) {
      names_->clear(block);
      continue;
    }
    at(block).hash = name.hash;
    at(block).place = name.place;
    index_.insert(name.hash, block);
    found.push_back(block);
  }
  std::stable_sort(found.begin(), found.end(),
                   [this](BlockId one, BlockId other) { return at(one).place > at(other).place; });
  for (BlockId block : found) append(block);
  std::erase_if(free_, [this](BlockId block) { return at(block).hash != BlockHash{}; });
}

/// Nothing while a copy writes what the name stands for: the copy's end keeps it.
void BlockPool::keep_name(BlockId block) {
  const Entry& entry = at(block);
  if (names_ != nullptr && !entry.filling && entry.hash != BlockHash{})
    names_->set(block, {entry.hash, entry.place});
}

void BlockPool::append(BlockId block) {
  cached_.append(block);
  if (unsaved_ == kNoBlock) unsaved_ = block;
}

void BlockPool::unlink(BlockId block) {
  Entry& entry = at(block);
  if (unsaved_ == block) unsaved_ = cached_.newer(block);
  saved_ -= entry.saved ? 1 : 0;
  entry.saved = false;
  cached_.remove(block);
}

BlockId BlockPool::take() {
  BlockId block = cached_.oldest();
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    TROUPE_CHECK(block != kNoBlock);
    unlink(block);
    index_.erase(at(block).hash);
    ++evicted_;
  }
  clear_name(block);
  Entry& entry = at(block);
  entry.hash = {};
  entry.filling = false;
  entry.holders = 1;
  ++leased_;
  return block;
}

void BlockPool::share(BlockId block) {
  Entry& entry = at(block);
  if (entry.holders++ > 0) return;
  TROUPE_CHECK(entry.hash != BlockHash{});
  unlink(block);
  ++(entry.filling ? moving_ : leased_);
}

void BlockPool::drop(BlockId block) {
  Entry& entry = at(block);
  TROUPE_CHECK(entry.holders > 0);
  if (--entry.holders > 0) return;
  --(entry.filling ? moving_ : leased_);
  if (entry.hash != BlockHash{}) {
    const BlockId found = index_.find(entry.hash);
    if (found == kNoBlock) index_.insert(entry.hash, block);
    if (found == kNoBlock || found == block) return append(block);
    entry.hash = {};
    clear_name(block);
  }
  entry.filling = false;
  free_.push_back(block);
}

void BlockPool::publish(BlockId block, const BlockHash& hash, std::int32_t place) {
  Entry& entry = at(block);
  TROUPE_CHECK(entry.holders > 0 && hash != BlockHash{});
  if (entry.hash != BlockHash{}) return;
  entry.hash = hash;
  entry.place = place;
  if (const BlockId known = index_.find(hash); known == kNoBlock) {
    index_.insert(hash, block);
  } else if (known != block && at(known).holders == 0 && !at(known).filling) {
    unlink(known);
    index_.erase(hash);
    at(known).hash = {};
    clear_name(known);
    free_.push_back(known);
    index_.insert(hash, block);
  }
  keep_name(block);
}

void BlockPool::withdraw(BlockId block) {
  Entry& entry = at(block);
  TROUPE_CHECK(entry.holders > 0);
  if (entry.hash != BlockHash{} && index_.find(entry.hash) == block) index_.erase(entry.hash);
  entry.hash = {};
  clear_name(block);
}

std::int32_t BlockPool::forget() {
  const std::int32_t known = index_.size();
  while (cached_.size() > 0) {
    free_.push_back(cached_.oldest());
    unlink(cached_.oldest());
  }
  index_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.hash = {};
    entry.filling &= entry.holders > 0;
    clear_name(static_cast<BlockId>(i));
  }
  return known;
}

void BlockPool::use(BlockId block, std::uint64_t command, bool writes) {
  Entry& entry = at(block);
  TROUPE_CHECK(command > entry.used_by);
  entry.used_by = command;
  if (writes) begin_fill(block);
}

void BlockPool::begin_fill(BlockId block) {
  Entry& entry = at(block);
  TROUPE_CHECK(entry.holders > 0);
  if (entry.filling) return;
  entry.filling = true;
  clear_name(block);
  --leased_;
  ++moving_;
}

void BlockPool::end_use(BlockId block, std::uint64_t command, bool failed) {
  Entry& entry = at(block);
  if (entry.used_by != command) return;
  entry.used_by = 0;
  if (!entry.filling) return;
  entry.filling = false;
  if (entry.holders > 0) {
    --moving_;
    ++leased_;
    if (failed) withdraw(block);
  } else if (failed) {
    unlink(block);
    index_.erase(entry.hash);
    entry.hash = {};
    free_.push_back(block);
  }
  keep_name(block);
}

void BlockPool::mark_saved() {
  TROUPE_CHECK(unsaved_ != kNoBlock);
  at(unsaved_).saved = true;
  unsaved_ = cached_.newer(unsaved_);
  ++saved_;
}

CacheStatus BlockPool::status() const {
  return {static_cast<std::int32_t>(entries_.size()),
          static_cast<std::int32_t>(free_.size()),
          cached_.size(),
          leased_,
          moving_,
          evicted_,
          {}};
}

bool BlockPool::sound() const {
  std::int32_t leased = 0, moving = 0, unheld = 0, found = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.holders < 0 || (entry.filling && entry.used_by == 0)) return false;
    ++(entry.holders == 0 ? unheld : entry.filling ? moving : leased);
    const bool published = entry.hash != BlockHash{};
    found += published && index_.find(entry.hash) == static_cast<BlockId>(i) ? 1 : 0;
  }
  std::vector<bool> seen(entries_.size());
  const auto first_time = [&](BlockId block) {
    const std::size_t i = static_cast<std::size_t>(block);
    return entries_[i].holders == 0 && !seen[i] && (seen[i] = true);
  };
  for (BlockId block : free_) {
    if (!first_time(block) || at(block).hash != BlockHash{} || at(block).filling) return false;
  }
  std::int32_t cached = 0, saved = 0;
  BlockId unsaved = kNoBlock;
  for (BlockId block = cached_.oldest(), older = kNoBlock; block != kNoBlock;
       older = block, block = cached_.newer(block)) {
    if (!first_time(block) || cached_.older(block) != older || index_.find(at(block).hash) != block)
      return false;
    ++cached;
    if (at(block).saved && unsaved != kNoBlock) return false;
    if (!at(block).saved && unsaved == kNoBlock) unsaved = block;
    saved += at(block).saved ? 1 : 0;
  }
  if (saved != saved_ || unsaved != unsaved_) return false;
  const CacheStatus s = status();
  return leased == leased_ && moving == moving_ && cached == cached_.size() && unheld == s.free + s.cached &&
         found == index_.size() && s.free + s.cached + s.leased + s.moving == s.total;
}

}  // namespace troupe
