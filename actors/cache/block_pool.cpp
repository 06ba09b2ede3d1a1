#include "actors/cache/block_pool.h"

#include "base/check.h"

namespace troupe {

BlockPool::BlockPool(std::int32_t total) : entries_(static_cast<std::size_t>(total)) {
  free_.reserve(entries_.size());
  for (BlockId block = total - 1; block >= 0; --block) free_.push_back(block);
}

BlockId BlockPool::take() {
  TROUPE_CHECK(!free_.empty());
  const BlockId block = free_.back();
  free_.pop_back();
  entries_[static_cast<std::size_t>(block)].holders = 1;
  ++leased_;
  return block;
}

void BlockPool::share(BlockId block) {
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  TROUPE_CHECK(entry.holders > 0);
  ++entry.holders;
}

void BlockPool::drop(BlockId block) {
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  TROUPE_CHECK(entry.holders > 0);
  if (--entry.holders > 0) return;
  --(entry.moved_by != 0 ? moving_ : leased_);
  entry.moved_by = 0;
  free_.push_back(block);
}

void BlockPool::begin_move(BlockId block, std::uint64_t command) {
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  TROUPE_CHECK(entry.holders > 0 && command != 0);
  if (entry.moved_by == 0) {
    --leased_;
    ++moving_;
  }
  entry.moved_by = command;
}

void BlockPool::end_move(BlockId block, std::uint64_t command) {
  Entry& entry = entries_[static_cast<std::size_t>(block)];
  if (entry.moved_by != command) return;
  entry.moved_by = 0;
  --moving_;
  ++leased_;
}

CacheStatus BlockPool::status() const {
  return {static_cast<std::int32_t>(entries_.size()), free_blocks(), 0, leased_, moving_};
}

bool BlockPool::sound() const {
  std::int32_t leased = 0, moving = 0, unheld = 0;
  for (const Entry& entry : entries_) {
    if (entry.holders < 0 || (entry.holders == 0 && entry.moved_by != 0)) return false;
    ++(entry.holders == 0 ? unheld : entry.moved_by != 0 ? moving : leased);
  }
  std::vector<bool> seen(entries_.size());
  for (BlockId block : free_) {
    const std::size_t i = static_cast<std::size_t>(block);
    if (entries_[i].holders != 0 || seen[i]) return false;
    seen[i] = true;
  }
  const CacheStatus s = status();
  return leased == leased_ && moving == moving_ && unheld == s.free &&
         s.free + s.cached + s.leased + s.moving == s.total;
}

}  // namespace troupe
