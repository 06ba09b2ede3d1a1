#pragma once
// The names of an engine's KV blocks, for a front on another machine: what has changed in the engine's table
// (ipc/block_names.h) since it was looked at last, and the front's copy of it. Both machines name blocks with
// the cluster's key.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe::remote {

/// An entry that has changed.
struct NameChange {
  std::int32_t block = 0;
  std::int32_t place = 0;  ///< as BlockName::place; -1: the block has no name any more
  BlockHash hash{};
};
static_assert(sizeof(NameChange) == 24);

/// Of a frame: the changes behind one word, the life of the memory that the names are about.
inline constexpr std::size_t kMostNameChanges = 8192;
inline constexpr std::size_t kMostNameBytes = sizeof(std::uint64_t) + kMostNameChanges * sizeof(NameChange);

class NameChanges {
 public:
  explicit NameChanges(std::shared_ptr<const ipc::BlockNames> table) : table_(std::move(table)) {}

  /// The other side knows nothing.
  void restart();

  /// What has changed since, as the payload of a frame; empty: nothing has. Takes time in proportion to the
  /// table's blocks.
  std::span<const std::byte> look();

 private:
  std::shared_ptr<const ipc::BlockNames> table_;
  std::uint64_t memory_ = 0;
  std::vector<std::uint64_t> seen_;  // by block, the state of its entry
  std::vector<std::byte> payload_;
};

/// Enters such a payload. False: it is none.
bool apply_names(ipc::BlockNames& table, std::span<const std::byte> payload);

}  // namespace troupe::remote
