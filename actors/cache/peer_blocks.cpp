#include "actors/cache/peer_blocks.h"

#include <atomic>
#include <utility>

namespace troupe {

PeerBlocks::PeerBlocks(Tables tables) : tables_(std::move(tables)) {
  for (const auto& table : tables_) instances_.push_back({CachedNames(table), 0});
}

void PeerBlocks::refresh() {
  for (Instance& instance : instances_) {
    if (instance.skipped > 0) --instance.skipped;
    if (instance.skipped == 0) instance.names.refresh();
  }
}

PeerBlock PeerBlocks::find(const BlockHash& contents) const {
  for (std::uint32_t peer = 0; peer < instances_.size(); ++peer) {
    const CachedNames& names = instances_[peer].names;
    const BlockId block = instances_[peer].skipped > 0 ? kNoBlock : names.find(contents);
    if (block != kNoBlock) return {peer, block, names.memory(), names.state(block)};
  }
  return {};
}

bool PeerBlocks::unchanged(const PeerBlock& found) const {
  // What was copied was read before the entry is read again.
  std::atomic_thread_fence(std::memory_order_acquire);
  const ipc::BlockNames& table = *tables_[found.peer];
  return table.memory() == found.memory && found.block < table.end() &&
         table.state(found.block) == found.state;
}

}  // namespace troupe
