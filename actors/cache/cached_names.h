#pragma once
// Which KV blocks other processes have, as the tables of their names say. Pure but for the shared memory that
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

/// The names of all engines' blocks, as of the last refresh(). By name, so that who has it is found in a time
/// that does not grow with the number of engines. Used by one thread at a time.
class CachedNames {
 public:
  /// By engine; null: it has none.
  explicit CachedNames(std::vector<std::shared_ptr<const ipc::BlockNames>> tables);

  /// Reads the tables. Takes time in proportion to their blocks, about two nanoseconds each where nothing has
  /// changed.
  void refresh();

  /// A block of an engine.
  struct Holder {
    std::uint32_t engine = 0;
    BlockId block = 0;

    bool operator==(const Holder&) const = default;
  };

  /// Calls `each` with every block that has this name. Its name may have changed since: compare
  /// BlockNames::state() with state().
  template <class Each>
  void for_each_holder(const BlockHash& name, Each&& each) const {
    const auto known = holders_.find(name);
    if (known == holders_.end()) return;
    each(known->second.first);
    for (const Holder& holder : known->second.others) each(holder);
  }

  /// The state that the entry of a block had whose name is known.
  std::uint64_t state(const Holder& of) const {
    return tables_[of.engine].seen[static_cast<std::size_t>(of.block)].state;
  }
  /// The life of the memory that the engine's names are about; 0: none.
  std::uint64_t memory(std::uint32_t engine) const { return tables_[engine].memory; }

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
  /// Most names are those of one block.
  struct Holders {
    Holder first;
    std::vector<Holder> others;
  };
  void refresh(std::uint32_t engine);
  void add(const BlockHash& name, Holder holder);
  void forget(Holder holder);

  std::vector<Table> tables_;  ///< by engine
  std::unordered_map<BlockHash, Holders, HashOfName> holders_;
};

}  // namespace troupe
