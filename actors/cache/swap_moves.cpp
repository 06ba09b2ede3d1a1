// The half of CacheManager that copies: what goes to the swap space and comes back, and the commands for it.
#include <algorithm>

#include "actors/cache/cache_manager.h"
#include "base/check.h"

namespace troupe {
namespace {

/// One block in so many of the KV memory is kept ready to be taken without a copy first.
constexpr std::int32_t kReadyShare = 8;

}  // namespace

/// Fills found_ with the blocks that hold the first contents named, up to the first that are nowhere, or that
/// are not worth a copy.
void CacheManager::look_up(std::span<const BlockHash> hashes) {
  std::size_t first_swapped = hashes.size();
  std::size_t swapped = 0;
  for (const BlockHash& hash : hashes) {
    Found found{pool_.find(hash), kNoBlock};
    if (found.block == kNoBlock) {
      if (!commands_.may_fetch(swapped)) break;
      found.swap = swap_.find(hash);
      if (found.swap == kNoBlock) break;
      if (swapped++ == 0) first_swapped = found_.size();
    }
    found_.push_back(found);
  }
  if (swapped > 0 && judge_.judge(static_cast<std::int64_t>(swapped), false, true) == Restore::recompute) {
    found_.resize(first_swapped);
  }
}

/// A free block, or a cached one whose contents are saved first.
BlockId CacheManager::take() {
  if (const BlockId victim = pool_.next_victim(); victim != kNoBlock && !pool_.saved(victim)) save(victim);
  return pool_.take();
}

/// Copies the contents of a cached block to the swap space, unless they are there, or there is no room, or
/// they are computed again in less time.
void CacheManager::save(BlockId block) {
  const BlockHash& contents = pool_.contents(block);
  if (!swap_.can_save() || !commands_.may_save()) return;
  if (swap_.knows(contents) || pool_.filling(block) || judge_.judge(1, true, true) == Restore::recompute) return;
  commands_.add(wire::CacheOp::swap_out, {block, swap_.begin_save(contents)});
}

/// Saves the cached blocks that will be evicted next.
void CacheManager::save_ahead() {
  const std::int32_t wanted = std::max(1, pool_.status().total / kReadyShare);
  while (swap_.can_save() && commands_.may_save() && pool_.ready() < wanted &&
         pool_.next_unsaved() != kNoBlock) {
    save(pool_.next_unsaved());
    pool_.mark_saved();
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
  const bool failed = record.failed != 0;
  if (failed && command->op == wire::CacheOp::copy_blocks) return false;
  if (!failed) {
    const std::int64_t blocks = static_cast<std::int64_t>(command->copies.size());
    const double seconds = 1e-9 * static_cast<double>(record.finished_ns - record.started_ns);
    if (command->op == wire::CacheOp::swap_out) judge_.add_out(blocks, seconds);
    if (command->op == wire::CacheOp::swap_in) judge_.add_in(blocks, seconds);
  }
  end_copies(*command, failed);
  commands_.end(*command, failed, pool_);
  report_fetched(update);
  update.status = status();
  return true;
}

void CacheManager::end_copies(const CopyCommands::InFlight& command, bool failed) {
  const std::int64_t blocks = static_cast<std::int64_t>(command.copies.size());
  if (failed) counts_.failed += blocks;
  switch (command.op) {
    case wire::CacheOp::copy_blocks: return;
    case wire::CacheOp::swap_out:
      for (const wire::BlockCopy& copy : command.copies) swap_.end_save(copy.to, !failed);
      if (!failed) counts_.out += blocks;
      return;
    case wire::CacheOp::swap_in:
      for (const wire::BlockCopy& copy : command.copies) swap_.end_fetch(copy.from, !failed);
      if (!failed) counts_.in += blocks;
      return;
  }
}

void CacheManager::report_fetched(CacheGrants& update) {
  leases_.end_fetches(pool_, update.fetched);
  for (const FetchOutcome& outcome : update.fetched) {
    if (outcome.failed) release(outcome.key);
  }
}

}  // namespace troupe
