#pragma once
// Where the KV blocks of prompts are likely to be found: what an engine says of its blocks, and what was sent
// where lately. Pure but for the shared memory that the first reads.
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
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

 private:
  struct Seen {
    std::uint64_t state = 0;
    BlockHash name{};  ///< zero: none
  };
  void forget(Seen& seen);

  std::shared_ptr<const ipc::BlockNames> table_;
  std::uint64_t memory_ = 0;
  std::vector<Seen> seen_;                                          // by block
  std::unordered_map<BlockHash, std::int32_t, HashOfName> blocks_;  // how many have the name
};

/// The engines that names were sent to, of the last kMost names.
class RecentNames {
 public:
  static constexpr std::size_t kMost = 1 << 14;

  void put(const BlockHash& name, std::uint32_t engine);
  /// Nothing when it is not known.
  std::optional<std::uint32_t> engine_of(const BlockHash& name) const;

 private:
  struct Entry {
    BlockHash name;
    std::uint32_t engine = 0;
  };
  std::list<Entry> entries_;  // the latest first
  std::unordered_map<BlockHash, std::list<Entry>::iterator, HashOfName> index_;
};

}  // namespace troupe
