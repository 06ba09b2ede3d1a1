#include "actors/cache/swap_moves.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

/// One block in so many of the KV memory is kept ready to be taken without a copy first.
constexpr std::int32_t kReadyShare = 8;

}  // namespace

void SwapMoves::reset(const SwapShape& shape, std::int32_t block_tokens) {
  swap_ = SwapPool(shape.blocks);
  judge_.reset(block_tokens, shape.block_bytes);
  out_ = in_ = failed_ = 0;
}

void SwapMoves::look_up(std::span<const BlockHash> hashes, const BlockPool& pool,
                        const CopyCommands& commands, PeerBlocks& peers, std::vector<FoundBlock>& found) {
  std::size_t first_swapped = hashes.size();
  std::size_t swapped = 0;
  std::size_t fetched = 0;
  bool fresh = !peers.any();
  for (const BlockHash& hash : hashes) {
    FoundBlock block{pool.find(hash)};
    if (block.block == kNoBlock) {
      if (!commands.may_fetch(fetched)) break;
      ++fetched;
      block.swap = swap_.find(hash);
      if (block.swap != kNoBlock) {
        if (swapped++ == 0) first_swapped = found.size();
      } else {
        if (!std::exchange(fresh, true)) peers.refresh();
        block.peer = peers.find(hash);
        if (block.peer.block == kNoBlock) break;
      }
    }
    found.push_back(block);
  }
  if (swapped > 0 && judge_.judge(static_cast<std::int64_t>(swapped), false, true) == Restore::recompute) {
    found.resize(first_swapped);
  }
}

BlockId SwapMoves::take(BlockPool& pool, CopyCommands& commands) {
  if (const BlockId victim = pool.next_victim(); victim != kNoBlock && !pool.saved(victim))
    save(victim, pool, commands);
  return pool.take();
}

/// Copies the contents of a cached block to the swap space, unless they are there, or there is no room, or
/// they are computed again in less time.
void SwapMoves::save(BlockId block, const BlockPool& pool, CopyCommands& commands) {
  const BlockHash& contents = pool.contents(block);
  if (!swap_.can_save() || !commands.may_save()) return;
  if (swap_.knows(contents) || pool.filling(block) || judge_.judge(1, true, true) == Restore::recompute)
    return;
  commands.add(wire::CacheOp::swap_out, {block, swap_.begin_save(contents)});
}

void SwapMoves::save_ahead(BlockPool& pool, CopyCommands& commands) {
  const std::int32_t wanted = std::max(1, pool.status().total / kReadyShare);
  while (swap_.can_save() && commands.may_save() && pool.ready() < wanted &&
         pool.next_unsaved() != kNoBlock) {
    save(pool.next_unsaved(), pool, commands);
    pool.mark_saved();
  }
}

void SwapMoves::end(const CopyCommands::InFlight& command, bool failed, double seconds) {
  if (command.op == wire::CacheOp::copy_blocks || command.op == wire::CacheOp::peer_in) return;
  const std::int64_t blocks = static_cast<std::int64_t>(command.copies.size());
  if (failed) failed_ += blocks;
  if (command.op == wire::CacheOp::swap_out) {
    for (const wire::BlockCopy& copy : command.copies) swap_.end_save(copy.to, !failed);
    if (failed) return;
    out_ += blocks;
    judge_.add_out(blocks, seconds);
  } else {
    for (const wire::BlockCopy& copy : command.copies) swap_.end_fetch(copy.from, !failed);
    if (failed) return;
    in_ += blocks;
    judge_.add_in(blocks, seconds);
  }
}

SwapStatus SwapMoves::status() const {
  SwapStatus status = swap_.status();
  status.out = out_;
  status.in = in_;
  status.failed = failed_;
  status.declined = judge_.declined();
  return status;
}

}  // namespace troupe
