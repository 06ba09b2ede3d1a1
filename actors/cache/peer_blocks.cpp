#include "actors/cache/peer_blocks.h"

#include <atomic>
#include <utility>

namespace troupe {

PeerBlocks::PeerBlocks(Tables tables)
    : tables_(std::move(tables)), names_(tables_), skipped_(tables_.size()) {}

void PeerBlocks::refresh() {
  refreshed_ = Clock::now();
  names_.refresh();
}

PeerBlock PeerBlocks::find(const BlockHash& contents) const {
  PeerBlock found;
  names_.for_each_holder(contents, [&](const CachedNames::Holder& holder) {
    const std::uint64_t memory = names_.memory(holder.engine);
    const Skipped& skipped = skipped_[holder.engine];
    if (found.block != kNoBlock || (refreshed_ < skipped.until && skipped.memory == memory)) return;
    found = {holder.engine, holder.block, memory, names_.state(holder)};
  });
  return found;
}

bool PeerBlocks::unchanged(const PeerBlock& found) const {
  // What was copied was read before the entry is read again.
  std::atomic_thread_fence(std::memory_order_acquire);
  const ipc::BlockNames& table = *tables_[found.peer];
  return table.memory() == found.memory && found.block < table.end() &&
         table.state(found.block) == found.state;
}

}  // namespace troupe
