#include "actors/remote/name_changes.h"

#include <cstring>

namespace troupe::remote {

void NameChanges::restart() {
  memory_ = 0;
  seen_.clear();
}

std::span<const std::byte> NameChanges::look() {
  const std::uint64_t memory = table_->memory();
  const bool other = memory != memory_;
  if (other) seen_.clear();
  memory_ = memory;
  if (memory == 0 && !other) return {};
  payload_.assign(sizeof memory, std::byte{});
  std::memcpy(payload_.data(), &memory, sizeof memory);
  const auto blocks = static_cast<std::size_t>(table_->end());
  if (seen_.size() < blocks) seen_.resize(blocks);
  std::size_t changes = 0;
  for (std::size_t block = 0; block < blocks && memory != 0 && changes < kMostNameChanges; ++block) {
    const auto id = static_cast<BlockId>(block);
    const std::uint64_t state = table_->state(id);
    if (state == seen_[block]) continue;
    NameChange change{id, -1};
    if (ipc::BlockName name; state % 2 == 1) {
      if (!table_->read(id, name)) continue;  // it changes at this moment
      change.place = name.place;
      change.hash = name.hash;
    }
    seen_[block] = state;
    const std::size_t at = payload_.size();
    payload_.resize(at + sizeof change);
    std::memcpy(payload_.data() + at, &change, sizeof change);
    ++changes;
  }
  if (changes == 0 && !other) return {};
  return payload_;
}

bool apply_names(ipc::BlockNames& table, std::span<const std::byte> payload) {
  std::uint64_t memory = 0;
  if (payload.size() < sizeof memory || (payload.size() - sizeof memory) % sizeof(NameChange) != 0)
    return false;
  std::memcpy(&memory, payload.data(), sizeof memory);
  if (memory != table.memory()) table.begin(memory);
  for (payload = payload.subspan(sizeof memory); !payload.empty();
       payload = payload.subspan(sizeof(NameChange))) {
    NameChange change;
    std::memcpy(&change, payload.data(), sizeof change);
    const bool named = change.place >= 0;
    if (change.block < 0 || change.place < -1 || (named && change.hash == BlockHash{})) return false;
    if (named) {
      table.set(change.block, {change.hash, change.place});
    } else {
      table.clear(change.block);
    }
  }
  return true;
}

}  // namespace troupe::remote
