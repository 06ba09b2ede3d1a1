#include "actors/cache/cache_manager.h"

#include <algorithm>

#include "base/check.h"

namespace troupe {

void CacheManager::reset(std::uint32_t epoch, std::int32_t blocks, std::int32_t block_tokens) {
  TROUPE_CHECK(epoch != 0 && blocks >= 0 && block_tokens > 0);
  epoch_ = epoch;
  block_tokens_ = block_tokens;
  pool_ = BlockPool(blocks);
  for (const auto& [key, at] : index_) {
    leases_[at].blocks.clear();
    unused_.push_back(at);
  }
  index_.clear();
  last_command_ = 0;
  moves_.clear();
  copies_.clear();
  command_ = {};
}

void CacheManager::answer(const CacheAsks& asks, CacheGrants& grants) {
  grants.epoch = asks.epoch;
  grants.grants.clear();
  grants.blocks.clear();
  command_ = {};
  if (asks.epoch == epoch_ && epoch_ != 0) {
    const auto hashes = [&asks](const HashRange& range) {
      return std::span(asks.hashes)
          .subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count));
    };
    for (const PublishAsk& ask : asks.publishes) publish(ask, hashes(ask.hashes));
    for (const RequestKey& key : asks.withdrawals) withdraw(key);
    for (const RequestKey& key : asks.releases) release(key);
    for (const ForkAsk& ask : asks.forks) {
      Grant& grant = grants.grants.emplace_back();
      grant.refused = !fork(ask, grant, grants.blocks);
    }
    for (const GrowAsk& ask : asks.grows) {
      Grant& grant = grants.grants.emplace_back();
      grant.refused = !grow(ask, hashes(ask.hashes), grant, grants.blocks);
    }
    write_command();
  }
  grants.last_command = last_command_;
  grants.status = pool_.status();
}

bool CacheManager::room(std::int32_t blocks, std::int32_t keep_free) const {
  return blocks <= 0 || blocks + keep_free <= pool_.available();
}

void CacheManager::publish(const PublishAsk& ask, std::span<const BlockHash> hashes) {
  const auto found = index_.find(ask.key);
  if (found == index_.end() || !leases_[found->second].publishes) return;
  const std::vector<BlockId>& blocks = leases_[found->second].blocks;
  TROUPE_CHECK(static_cast<std::size_t>(ask.first) + hashes.size() <= blocks.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    pool_.publish(blocks[static_cast<std::size_t>(ask.first) + i], hashes[i]);
  }
}

/// Blocks that other leases hold too stay published: their steps may have been good.
void CacheManager::withdraw(const RequestKey& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  for (BlockId block : leases_[found->second].blocks) {
    if (pool_.holders(block) == 1) pool_.withdraw(block);
  }
}

std::int32_t CacheManager::reset_prefixes() {
  for (const auto& [key, at] : index_) leases_[at].publishes = false;
  return pool_.forget();
}

bool CacheManager::grow(const GrowAsk& ask, std::span<const BlockHash> hashes, Grant& grant,
                        std::vector<BlockId>& blocks) {
  const auto known = index_.find(ask.key);
  grant.key = ask.key;
  grant.first_block = static_cast<std::int32_t>(blocks.size());
  found_.clear();
  std::int32_t revived = 0;  // found and cached: they are available now and will not be afterwards
  if (known == index_.end()) {
    for (const BlockHash& hash :
         hashes.first(std::min(hashes.size(), static_cast<std::size_t>(ask.blocks)))) {
      const BlockId block = pool_.find(hash);
      if (block == kNoBlock) break;
      revived += pool_.holders(block) == 0 ? 1 : 0;
      found_.push_back(block);
    }
  } else {
    grant.first = static_cast<std::int32_t>(leases_[known->second].blocks.size());
  }
  const std::int32_t held = grant.first + static_cast<std::int32_t>(found_.size());
  if (!room(ask.blocks - held + revived, ask.keep_free)) return false;
  Lease& lease = known == index_.end() ? open_lease(ask.key) : leases_[known->second];
  for (BlockId block : found_) {
    pool_.share(block);
    lease.blocks.push_back(block);
    blocks.push_back(block);
  }
  extend(lease, ask.blocks, blocks);
  grant.cached = static_cast<std::int32_t>(found_.size());
  grant.blocks = static_cast<std::int32_t>(blocks.size()) - grant.first_block;
  return true;
}

bool CacheManager::fork(const ForkAsk& ask, Grant& grant, std::vector<BlockId>& blocks) {
  grant.key = ask.child;
  grant.first_block = static_cast<std::int32_t>(blocks.size());
  const auto parent = index_.find(ask.parent);
  if (parent == index_.end() || index_.contains(ask.child) || ask.tokens < 0) return false;
  const std::int32_t full = ask.tokens / block_tokens_;
  const std::int32_t begun = (ask.tokens + block_tokens_ - 1) / block_tokens_;
  const std::int32_t wanted = std::max(ask.blocks, begun);
  if (begun > static_cast<std::int32_t>(leases_[parent->second].blocks.size())) return false;
  if (!room(wanted - full, ask.keep_free)) return false;

  const std::uint32_t from = parent->second;  // open_lease() may move both the index and the leases
  Lease& child = open_lease(ask.child);
  child.publishes = leases_[from].publishes;
  const std::vector<BlockId>& source = leases_[from].blocks;
  for (std::int32_t i = 0; i < full; ++i) {
    const BlockId block = source[static_cast<std::size_t>(i)];
    pool_.share(block);
    child.blocks.push_back(block);
    blocks.push_back(block);
  }
  extend(child, wanted, blocks);
  if (begun > full) {
    const std::size_t partial = static_cast<std::size_t>(full);
    copies_.push_back({source[partial], child.blocks[partial]});
  }
  grant.blocks = static_cast<std::int32_t>(blocks.size()) - grant.first_block;
  return true;
}

void CacheManager::release(const RequestKey& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  std::vector<BlockId>& blocks = leases_[found->second].blocks;
  // In reverse: the end of a prefix is evicted before its beginning, and the next lease takes free blocks in
  // the order of the table.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) pool_.drop(*block);
  blocks.clear();
  unused_.push_back(found->second);
  index_.erase(found);
}

CacheManager::Lease& CacheManager::open_lease(const RequestKey& key) {
  std::uint32_t at = static_cast<std::uint32_t>(leases_.size());
  if (unused_.empty()) {
    leases_.emplace_back();
  } else {
    at = unused_.back();
    unused_.pop_back();
  }
  index_.emplace(key, at);
  leases_[at].publishes = true;
  return leases_[at];
}

void CacheManager::extend(Lease& lease, std::int32_t to, std::vector<BlockId>& granted) {
  while (static_cast<std::int32_t>(lease.blocks.size()) < to) {
    lease.blocks.push_back(pool_.take());
    granted.push_back(lease.blocks.back());
  }
}

void CacheManager::write_command() {
  if (copies_.empty()) return;
  ++last_command_;
  for (const wire::BlockCopy& copy : copies_) {
    pool_.begin_move(copy.to, last_command_);
    moves_.push_back({last_command_, copy.to});
  }
  writer_.begin(epoch_);
  const wire::Span<wire::BlockCopy> copies = writer_.array(copies_);
  writer_.record().id = last_command_;
  writer_.record().op = wire::CacheOp::copy_blocks;
  writer_.record().copies = copies;
  command_ = writer_.finish();
  copies_.clear();
}

bool CacheManager::done(const wire::CacheDone& record) {
  if (record.header.epoch != epoch_) return true;
  if (record.failed != 0 || record.id == 0 || record.id > last_command_) return false;
  std::size_t ended = 0;
  for (; ended < moves_.size() && moves_[ended].command <= record.id; ++ended) {
    pool_.end_move(moves_[ended].target, moves_[ended].command);
  }
  moves_.erase(moves_.begin(), moves_.begin() + static_cast<std::ptrdiff_t>(ended));
  return true;
}

std::span<const BlockId> CacheManager::table(const RequestKey& key) const {
  const auto found = index_.find(key);
  if (found == index_.end()) return {};
  return leases_[found->second].blocks;
}

bool CacheManager::sound() const {
  if (!pool_.sound()) return false;
  std::vector<std::int32_t> holders(static_cast<std::size_t>(pool_.status().total));
  for (const auto& [key, at] : index_) {
    for (BlockId block : leases_[at].blocks) ++holders[static_cast<std::size_t>(block)];
  }
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (holders[i] != pool_.holders(static_cast<BlockId>(i))) return false;
  }
  return true;
}

}  // namespace troupe
