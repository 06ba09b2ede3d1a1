#pragma once
// Which KV blocks another process has, as its table of their names says. Pure but for the shared memory that
// it reads.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe {

struct HashOfName {
  std::size_t operator()(const BlockHash& name) const noexcept { return static_cast<std::size_t>(name.lo); }
};

/// The names of one engine's blocks, as of the last refresh().
class CachedNames {
 public:
  /// Null: none.
  explicit CachedNames(std::shared_ptr<const ipc::BlockNames> table) : table_(std::move(table)) {}

  /// Reads the table. Takes time in proportion to its blocks, about a nanosecond each where nothing has
  /// changed.
  void refresh();

  bool contains(const BlockHash& name) const { return blocks_.contains(name); }

  /// A block with this name; kNoBlock: none has it. Its name may have changed since: compare
  /// BlockNames::state() with state().
  BlockId find(const BlockHash& name) const;
  /// The state that the block's entry had. Requires a block of find().
  std::uint64_t state(BlockId block) const { return seen_[static_cast<std::size_t>(block)].state; }
  /// The life of the memory that the names are about; 0: none.
  std::uint64_t memory() const { return memory_; }

 private:
  struct Seen {
    std::uint64_t state = 0;
    BlockHash name{};  ///< zero: none
  };
  void forget(std::size_t block);

  std::shared_ptr<const ipc::BlockNames> table_;
  std::uint64_t memory_ = 0;
  std::vector<Seen> seen_;                                          // by block
  std::unordered_multimap<BlockHash, BlockId, HashOfName> blocks_;  // by name
};

}  // namespace troupe
