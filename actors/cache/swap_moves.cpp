// The half of CacheManager that copies: what goes to the swap space and comes back, and the commands for it.
#include <algorithm>

#include "actors/cache/cache_manager.h"
#include "base/check.h"

namespace troupe {
namespace {

/// Bounds on what the worker has not finished, so that its rings and queues never fill up: one answer makes
/// at most (kMostSaving + kMostFetching) / kBlocksOfACommand commands more.
constexpr std::size_t kMostCommands = 96;
constexpr std::size_t kMostSaving = 512;
constexpr std::size_t kMostFetching = 4096;

/// One block in so many of the KV memory is kept ready to be taken without a copy first.
constexpr std::int32_t kReadyShare = 8;

}  // namespace

bool CacheManager::may_copy(std::size_t blocks, std::size_t most) const {
  return blocks < most && flying_ < kMostCommands;
}

/// Fills found_ with the blocks that hold the first contents named, up to the first that are nowhere, or that
/// are not worth a copy.
void CacheManager::look_up(std::span<const BlockHash> hashes) {
  std::size_t first_swapped = hashes.size();
  std::size_t swapped = 0;
  for (const BlockHash& hash : hashes) {
    Found found{pool_.find(hash), kNoBlock};
    if (found.block == kNoBlock) {
      if (!may_copy(fetched_blocks_ + swapped, kMostFetching)) break;
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
  if (!swap_.can_save() || !may_copy(saving_, kMostSaving)) return;
  if (swap_.knows(contents) || pool_.filling(block) || judge_.judge(1, true, true) == Restore::recompute) return;
  saves_.push_back({block, swap_.begin_save(contents)});
  ++saving_;
}

/// Saves the cached blocks that will be evicted next.
void CacheManager::save_ahead() {
  const std::int32_t wanted = std::max(1, pool_.status().total / kReadyShare);
  while (swap_.can_save() && may_copy(saving_, kMostSaving) && pool_.ready() < wanted &&
         pool_.next_unsaved() != kNoBlock) {
    save(pool_.next_unsaved());
    pool_.mark_saved();
  }
}

/// Saves first: the targets of the other copies may be blocks whose contents are saved.
void CacheManager::write_commands() {
  records_.clear();
  write_command(wire::CacheOp::swap_out, saves_);
  write_command(wire::CacheOp::copy_blocks, copies_);
  write_command(wire::CacheOp::swap_in, fetches_);
  saves_.clear();
  copies_.clear();
  fetches_.clear();
}

/// As many commands as these copies need.
void CacheManager::write_command(wire::CacheOp op, std::span<const wire::BlockCopy> copies) {
  while (!copies.empty()) {
    const bool one = op == wire::CacheOp::copy_blocks;
    const auto part = one ? copies : copies.first(std::min(copies.size(), kBlocksOfACommand));
    copies = copies.subspan(part.size());
    const std::uint64_t id = ++last_command_;
    std::uint64_t after = 0;
    for (const wire::BlockCopy& copy : part) {
      if (op != wire::CacheOp::swap_in) after = std::max(after, pool_.used_by(copy.from));
      if (op != wire::CacheOp::swap_out) after = std::max(after, pool_.used_by(copy.to));
    }
    for (const wire::BlockCopy& copy : part) {
      // The source of several copies in one command is used once.
      if (op != wire::CacheOp::swap_in && pool_.used_by(copy.from) != id) pool_.use(copy.from, id, false);
      if (op != wire::CacheOp::swap_out) pool_.use(copy.to, id, true);
    }
    if (writers_.size() == commands_) writers_.emplace_back();
    auto& writer = writers_[commands_++];
    writer.begin(epoch_);
    const wire::Span<wire::BlockCopy> span = writer.array(part);
    writer.record().id = id;
    writer.record().after = after;
    writer.record().op = op;
    writer.record().copies = span;
    records_.push_back(writer.finish());

    auto unused = std::find_if(flights_.begin(), flights_.end(), [](const Flight& f) { return f.id == 0; });
    if (unused == flights_.end()) unused = flights_.insert(unused, Flight{});
    unused->id = id;
    unused->op = op;
    unused->copies.assign(part.begin(), part.end());
    ++flying_;
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
  const auto flight =
      std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) { return f.id == record.id; });
  if (record.id == 0 || flight == flights_.end()) return false;
  const bool failed = record.failed != 0;
  if (failed && flight->op == wire::CacheOp::copy_blocks) return false;
  if (!failed) {
    const std::int64_t blocks = static_cast<std::int64_t>(flight->copies.size());
    const double seconds = 1e-9 * static_cast<double>(record.finished_ns - record.started_ns);
    if (flight->op == wire::CacheOp::swap_out) judge_.add_out(blocks, seconds);
    if (flight->op == wire::CacheOp::swap_in) judge_.add_in(blocks, seconds);
  }
  end_copies(*flight, failed);
  flight->id = 0;
  --flying_;
  report_fetched(update);
  update.status = status();
  return true;
}

void CacheManager::end_copies(Flight& flight, bool failed) {
  const std::int64_t blocks = static_cast<std::int64_t>(flight.copies.size());
  if (failed) counts_.failed += blocks;
  for (const wire::BlockCopy& copy : flight.copies) {
    switch (flight.op) {
      case wire::CacheOp::copy_blocks:
        pool_.end_use(copy.from, flight.id);
        pool_.end_use(copy.to, flight.id);
        break;
      case wire::CacheOp::swap_out:
        pool_.end_use(copy.from, flight.id);
        swap_.end_save(copy.to, !failed);
        break;
      case wire::CacheOp::swap_in:
        swap_.end_fetch(copy.from, !failed);
        pool_.end_use(copy.to, flight.id, failed);
        break;
    }
  }
  if (flight.op == wire::CacheOp::swap_out) {
    saving_ -= flight.copies.size();
    if (!failed) counts_.out += blocks;
  } else if (flight.op == wire::CacheOp::swap_in) {
    fetched_blocks_ -= flight.copies.size();
    if (!failed) counts_.in += blocks;
  }
}

void CacheManager::report_fetched(CacheGrants& update) {
  leases_.end_fetches(pool_, update.fetched);
  for (const FetchOutcome& outcome : update.fetched) {
    if (outcome.failed) release(outcome.key);
  }
}

}  // namespace troupe
