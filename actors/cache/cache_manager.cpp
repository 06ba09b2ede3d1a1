#include "actors/cache/cache_manager.h"

#include <algorithm>

#include "base/check.h"

namespace troupe {

void CacheManager::reset(std::uint32_t epoch, std::int32_t blocks, std::int32_t block_tokens,
                         const SwapShape& swap, std::uint64_t memory) {
  TROUPE_CHECK(epoch != 0 && blocks >= 0 && block_tokens > 0 && swap.blocks >= 0);
  epoch_ = epoch;
  block_tokens_ = block_tokens;
  pool_ = BlockPool(blocks, names_.get());
  if (names_ != nullptr && memory != 0 && names_->memory() == memory) {
    pool_.restore();
  } else if (names_ != nullptr) {
    names_->begin(memory);
  }
  swap_.reset(swap, block_tokens);
  from_peers_ = {};
  ahead_.clear();
  leases_.clear();
  commands_.reset(epoch);
}

void CacheManager::answer(const CacheAsks& asks, CacheGrants& grants) {
  grants.epoch = asks.epoch;
  grants.grants.clear();
  grants.fetched.clear();
  grants.blocks.clear();
  grants.last_command = 0;
  commands_.clear_records();
  if (asks.epoch == epoch_ && epoch_ != 0) {
    const auto hashes = [&asks](const HashRange& range) {
      return std::span(asks.hashes)
          .subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count));
    };
    swap_.set_prefill_speed(asks.prefill_tokens_per_s);
    taken_.clear();
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
    swap_.save_ahead(pool_, commands_);
    commands_.write(pool_);
    for (BlockId block : taken_) grants.last_command = std::max(grants.last_command, pool_.used_by(block));
  }
  grants.status = status();
}

void CacheManager::forget(const ForgetBlocks& forgotten) {
  for (const RequestKey& key : forgotten.keys) ahead_.forget(key, pool_);
}

void CacheManager::copy_ahead() {
  commands_.clear_records();
  if (epoch_ == 0) return;
  ahead_.copy_named(pool_, swap_, peers_, commands_);
  commands_.write(pool_);
}

CacheStatus CacheManager::status() const {
  CacheStatus status = pool_.status();
  status.swap = swap_.status();
  status.peers = from_peers_;
  return status;
}

bool CacheManager::room(std::int32_t blocks, std::int32_t keep_free) const {
  return blocks <= 0 || blocks + keep_free <= pool_.available();
}

void CacheManager::publish(const PublishAsk& ask, std::span<const BlockHash> hashes) {
  const LeaseIndex lease = leases_.find(ask.key);
  if (lease == kNoLease || !leases_.at(lease).publishes) return;
  const std::vector<BlockId>& blocks = leases_.at(lease).blocks;
  TROUPE_CHECK(static_cast<std::size_t>(ask.first) + hashes.size() <= blocks.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::size_t place = static_cast<std::size_t>(ask.first) + i;
    pool_.publish(blocks[place], hashes[i], static_cast<std::int32_t>(place));
  }
}

/// Blocks that other leases hold too stay published: their steps may have been good.
void CacheManager::withdraw(const RequestKey& key) {
  for (BlockId block : table(key)) {
    if (pool_.holders(block) > 1) continue;
    swap_.forget(pool_.contents(block));
    pool_.withdraw(block);
  }
}

std::int32_t CacheManager::reset_prefixes() {
  ahead_.forget_all(pool_);
  leases_.stop_publishing();
  swap_.forget();
  return pool_.forget();
}

bool CacheManager::grow(const GrowAsk& ask, std::span<const BlockHash> hashes, Grant& grant,
                        std::vector<BlockId>& blocks) {
  const LeaseIndex known = leases_.find(ask.key);
  grant.key = ask.key;
  grant.first_block = static_cast<std::int32_t>(blocks.size());
  found_.clear();
  if (known == kNoLease) {
    const std::size_t wanted = static_cast<std::size_t>(std::max(0, ask.blocks));
    swap_.look_up(hashes.first(std::min(hashes.size(), wanted)), pool_, commands_, peers_, found_);
  } else {
    grant.first = static_cast<std::int32_t>(leases_.at(known).blocks.size());
  }
  while (!room(lacking(ask, grant.first), ask.keep_free)) {
    if (!ahead_.give_up_one(ask.key, pool_)) return false;
  }
  const LeaseIndex at = known == kNoLease ? leases_.open(ask.key) : known;
  begin_with_found(at, hashes, grant, blocks);
  if (known == kNoLease) ahead_.forget(ask.key, pool_);
  extend(leases_.at(at), ask.blocks, blocks);
  grant.blocks = static_cast<std::int32_t>(blocks.size()) - grant.first_block;
  return true;
}

/// Blocks that have to be available beside the first `held` of the table and those of found_. Those of these
/// that are cached are available now, and will not be.
std::int32_t CacheManager::lacking(const GrowAsk& ask, std::int32_t held) const {
  std::int32_t revived = 0;
  for (const FoundBlock& found : found_) {
    if (found.block == kNoBlock) continue;
    ++held;
    revived += pool_.holders(found.block) == 0 ? 1 : 0;
  }
  return ask.blocks - held + revived;
}

/// Fills the beginning of a new table with found_. What is found is held before anything is taken: taking
/// evicts.
void CacheManager::begin_with_found(LeaseIndex at, std::span<const BlockHash> hashes, Grant& grant,
                                    std::vector<BlockId>& blocks) {
  Lease& lease = leases_.at(at);
  for (const FoundBlock& found : found_) {
    if (found.block != kNoBlock) {
      pool_.share(found.block);
    } else if (found.swap != kNoBlock) {
      swap_.hold(found.swap);
      ++grant.swapped;
    }
  }
  for (std::size_t i = 0; i < found_.size(); ++i) {
    BlockId block = found_[i].block;
    if (block == kNoBlock) {
      block = swap_.take(pool_, commands_);
      // Published before it is filled: another lease that finds it waits for the same copy. It counts as
      // moving first, so that no other manager trusts the name while the contents are under way.
      pool_.begin_fill(block);
      pool_.publish(block, hashes[i], static_cast<std::int32_t>(i));
      if (found_[i].swap != kNoBlock) {
        swap_.fetch(found_[i].swap, block, commands_);
      } else {
        commands_.add(found_[i].peer, block);
      }
      grant.fetching = true;
    } else {
      grant.fetching |= pool_.filling(block);
    }
    lease.blocks.push_back(block);
    blocks.push_back(block);
  }
  grant.cached = static_cast<std::int32_t>(found_.size());
  if (grant.fetching) leases_.await_fetch(grant.key, grant.cached);
}

bool CacheManager::fork(const ForkAsk& ask, Grant& grant, std::vector<BlockId>& blocks) {
  grant.key = ask.child;
  grant.first_block = static_cast<std::int32_t>(blocks.size());
  const LeaseIndex parent = leases_.find(ask.parent);
  if (parent == kNoLease || leases_.find(ask.child) != kNoLease || ask.tokens < 0) return false;
  const std::int32_t full = ask.tokens / block_tokens_;
  const std::int32_t begun = (ask.tokens + block_tokens_ - 1) / block_tokens_;
  const std::int32_t wanted = std::max(ask.blocks, begun);
  if (begun > static_cast<std::int32_t>(leases_.at(parent).blocks.size())) return false;
  while (!room(wanted - full, ask.keep_free)) {
    if (!ahead_.give_up_one(ask.child, pool_)) return false;
  }

  Lease& child = leases_.at(leases_.open(ask.child));
  child.publishes = leases_.at(parent).publishes;
  const std::vector<BlockId>& source = leases_.at(parent).blocks;
  for (std::int32_t i = 0; i < full; ++i) {
    const BlockId block = source[static_cast<std::size_t>(i)];
    pool_.share(block);
    child.blocks.push_back(block);
    blocks.push_back(block);
  }
  extend(child, wanted, blocks);
  if (begun > full) {
    const std::size_t partial = static_cast<std::size_t>(full);
    commands_.add(wire::CacheOp::copy_blocks, {source[partial], child.blocks[partial]});
  }
  grant.blocks = static_cast<std::int32_t>(blocks.size()) - grant.first_block;
  return true;
}

void CacheManager::release(const RequestKey& key) {
  const LeaseIndex lease = leases_.find(key);
  if (lease == kNoLease) return;
  const std::vector<BlockId>& blocks = leases_.at(lease).blocks;
  // In reverse: the end of a prefix is evicted before its beginning, and the next lease takes free blocks in
  // the order of the table.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) pool_.drop(*block);
  leases_.close(key);
}

void CacheManager::extend(Lease& lease, std::int32_t to, std::vector<BlockId>& granted) {
  while (static_cast<std::int32_t>(lease.blocks.size()) < to) {
    const BlockId block = swap_.take(pool_, commands_);
    lease.blocks.push_back(block);
    granted.push_back(block);
    taken_.push_back(block);
  }
}

bool CacheManager::done(const wire::CacheDone& record, CacheGrants& update) {
  update.epoch = epoch_;
  update.grants.clear();
  update.fetched.clear();
  update.blocks.clear();
  update.last_command = 0;
  update.status = status();
  if (record.header.epoch != epoch_) return true;
  const CopyCommands::InFlight* command = commands_.find(record.id);
  if (command == nullptr) return false;
  bool failed = record.failed != 0;
  if (failed && command->op == wire::CacheOp::copy_blocks) return false;
  if (command->op == wire::CacheOp::peer_in) failed = !end_peer_copies(*command, failed);
  swap_.end(*command, failed, 1e-9 * static_cast<double>(record.finished_ns - record.started_ns));
  commands_.end(*command, failed, pool_);
  leases_.end_fetches(pool_, update.fetched);
  ahead_.copies_ended(pool_);
  for (const FetchOutcome& outcome : update.fetched) {
    if (outcome.failed) release(outcome.key);
  }
  update.status = status();
  return true;
}

/// False when the blocks do not hold what was found: the worker could not copy, or the instance has changed a
/// source.
bool CacheManager::end_peer_copies(const CopyCommands::InFlight& command, bool failed) {
  if (failed) peers_.skip(command.sources.front());
  const bool whole = !failed && std::all_of(command.sources.begin(), command.sources.end(),
                                            [this](const PeerBlock& one) { return peers_.unchanged(one); });
  (whole ? from_peers_.in : from_peers_.failed) += static_cast<std::int64_t>(command.sources.size());
  return whole;
}

std::span<const BlockId> CacheManager::table(const RequestKey& key) const {
  const LeaseIndex lease = leases_.find(key);
  if (lease == kNoLease) return {};
  return leases_.at(lease).blocks;
}

bool CacheManager::sound() const {
  if (!pool_.sound() || !swap_.sound()) return false;
  std::vector<std::int32_t> holders = leases_.holders(pool_.status().total);
  ahead_.add_holders(holders);
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (holders[i] != pool_.holders(static_cast<BlockId>(i))) return false;
  }
  return true;
}

}  // namespace troupe
