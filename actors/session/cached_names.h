#pragma once
// Where the KV blocks of prompts are likely to be found: what engines say of their blocks, and what was sent
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

/// The names of all engines' blocks, as of the last refresh(). By name, so that who has it is found in a time
/// that does not grow with the number of engines.
class CachedNames {
 public:
  /// By engine; null: it has none.
  explicit CachedNames(std::vector<std::shared_ptr<const ipc::BlockNames>> tables);

  /// Reads the tables. Takes time in proportion to their blocks, about two nanoseconds each where nothing has
  /// changed.
  void refresh();

  /// Calls `each` with every engine that has a block with this name.
  template <class Each>
  void for_each_holder(const BlockHash& name, Each&& each) const {
    const auto known = holders_.find(name);
    if (known == holders_.end()) return;
    each(known->second.first.engine);
    for (const Holder& holder : known->second.others) each(holder.engine);
  }

 private:
  struct Seen {
    std::uint64_t state = 0;
    BlockHash name{};  ///< zero: none
  };
  struct Table {
    std::shared_ptr<const ipc::BlockNames> names;
    std::uint64_t memory = 0;
    std::vector<Seen> seen;  ///< by block
  };
  struct Holder {
    std::uint32_t engine = 0;
    std::uint32_t blocks = 0;  ///< of the engine that have the name
  };
  /// Most names are those of one engine.
  struct Holders {
    Holder first;
    std::vector<Holder> others;
  };
  void refresh(std::uint32_t engine);
  void add(std::uint32_t engine, const BlockHash& name);
  void forget(std::uint32_t engine, Seen& seen);

  std::vector<Table> tables_;  ///< by engine
  std::unordered_map<BlockHash, Holders, HashOfName> holders_;
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
