#include "actors/remote/expected_blocks.h"

#include <iterator>
#include <utility>

namespace troupe::remote {

void ExpectedBlocks::expect(std::span<const BlockHash> contents) {
  const std::lock_guard lock(mutex_);
  for (const BlockHash& name : contents) {
    if (places_.contains(name) || !awaited_.insert(name).second) continue;
    awaited_order_.push_back(name);
    if (awaited_order_.size() <= kMostNames) continue;
    awaited_.erase(awaited_order_.front());
    awaited_order_.pop_front();
  }
}

void ExpectedBlocks::named(BlockId block, const BlockHash& contents) {
  const std::lock_guard lock(mutex_);
  if (awaited_.erase(contents) > 0) orders_.push_back({contents, block});
}

std::optional<ExpectedBlocks::Order> ExpectedBlocks::next() {
  const std::lock_guard lock(mutex_);
  while (!blocks_.empty() && Clock::now() - blocks_.front().came > kKept) drop(blocks_.begin());
  if (orders_.empty() || asked_ == kMostAsked) return {};
  const Order order = orders_.front();
  orders_.pop_front();
  ++asked_;
  return order;
}

void ExpectedBlocks::answered(const BlockHash& contents, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (asked_ > 0) --asked_;
  if (bytes.empty() || bytes.size() > kMostBytes || places_.contains(contents)) return;
  while (bytes_ + bytes.size() > kMostBytes) drop(blocks_.begin());
  bytes_ += bytes.size();
  blocks_.push_back({contents, std::move(bytes), Clock::now()});
  places_[contents] = std::prev(blocks_.end());
}

void ExpectedBlocks::forget(const BlockHash& contents) {
  const std::lock_guard lock(mutex_);
  awaited_.erase(contents);
  std::erase_if(orders_, [&](const Order& order) { return order.contents == contents; });
}

std::vector<std::byte> ExpectedBlocks::take(const BlockHash& contents) {
  const std::lock_guard lock(mutex_);
  const auto at = places_.find(contents);
  if (at == places_.end()) return {};
  const auto block = at->second;
  bytes_ -= block->bytes.size();
  std::vector<std::byte> bytes = std::move(block->bytes);
  block->bytes.clear();
  drop(block);
  return bytes;
}

bool ExpectedBlocks::has_next() const {
  const std::lock_guard lock(mutex_);
  return !orders_.empty() && asked_ < kMostAsked;
}

void ExpectedBlocks::clear() {
  const std::lock_guard lock(mutex_);
  awaited_.clear();
  awaited_order_.clear();
  orders_.clear();
  blocks_.clear();
  places_.clear();
  asked_ = 0;
  bytes_ = 0;
}

void ExpectedBlocks::drop(std::list<Block>::iterator block) {
  bytes_ -= block->bytes.size();
  places_.erase(block->contents);
  blocks_.erase(block);
}

}  // namespace troupe::remote
