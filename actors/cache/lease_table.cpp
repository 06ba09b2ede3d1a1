#include "actors/cache/lease_table.h"

#include <algorithm>

namespace troupe {

void LeaseTable::clear() {
  for (const auto& [key, at] : index_) {
    leases_[at].blocks.clear();
    unused_.push_back(at);
  }
  index_.clear();
  fetching_.clear();
}

LeaseIndex LeaseTable::find(const RequestKey& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? kNoLease : found->second;
}

LeaseIndex LeaseTable::open(const RequestKey& key) {
  LeaseIndex lease = static_cast<LeaseIndex>(leases_.size());
  if (unused_.empty()) {
    leases_.emplace_back();
  } else {
    lease = unused_.back();
    unused_.pop_back();
  }
  index_.emplace(key, lease);
  leases_[lease].publishes = true;
  return lease;
}

void LeaseTable::close(const RequestKey& key) {
  const auto found = index_.find(key);
  leases_[found->second].blocks.clear();
  std::erase(fetching_, key);
  unused_.push_back(found->second);
  index_.erase(found);
}

void LeaseTable::stop_publishing() {
  for (const auto& [key, at] : index_) leases_[at].publishes = false;
}

void LeaseTable::await_fetch(const RequestKey& key, std::int32_t blocks) {
  Lease& lease = leases_[index_.at(key)];
  lease.fetched = blocks;
  lease.arrived = 0;
  fetching_.push_back(key);
}

void LeaseTable::end_fetches(const BlockPool& pool, std::vector<FetchOutcome>& ended) {
  const std::size_t before = ended.size();
  for (const RequestKey& key : fetching_) {
    Lease& lease = leases_[index_.at(key)];
    const auto arrived = [&] { return !pool.filling(lease.blocks[static_cast<std::size_t>(lease.arrived)]); };
    while (lease.arrived < lease.fetched && arrived()) ++lease.arrived;
    if (lease.arrived < lease.fetched) continue;
    const auto lost = [&](BlockId block) { return pool.contents(block) == BlockHash{}; };
    const auto first = lease.blocks.begin();
    ended.push_back({key, std::any_of(first, first + lease.fetched, lost)});
  }
  for (std::size_t i = before; i < ended.size(); ++i) std::erase(fetching_, ended[i].key);
}

std::vector<std::int32_t> LeaseTable::holders(std::int32_t total) const {
  std::vector<std::int32_t> holders(static_cast<std::size_t>(total));
  for (const auto& [key, at] : index_) {
    for (BlockId block : leases_[at].blocks) ++holders[static_cast<std::size_t>(block)];
  }
  return holders;
}

}  // namespace troupe
