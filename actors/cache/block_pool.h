#pragma once
// The set of all KV blocks and how many sequences hold each. A block is in exactly one of four states, so that
// free + cached + leased + moving == total holds after every call:
//
//   free     nobody holds it; it may be taken
//   cached   nobody holds it, but its contents are known and may be found again (no index yet: zero)
//   leased   one or more sequences hold it; a block shared by several is counted once
//   moving   held, and the target of a copy that the worker has not confirmed yet
//
// Swap space and eviction, once offered, act between `cached` and `free`, inside this class.
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "base/ids.h"

namespace troupe {

/// Reference counts over block ids [0, total). Every call is O(1) but sound() and the constructor.
/// Used by one thread; allocates in the constructor only.
class BlockPool {
 public:
  explicit BlockPool(std::int32_t total = 0);

  std::int32_t free_blocks() const { return static_cast<std::int32_t>(free_.size()); }

  /// A free block, held once by the caller. Requires free_blocks() > 0.
  BlockId take();

  /// Adds a holder to a held block.
  void share(BlockId block);

  /// Removes a holder. The last one frees the block, even while it is the target of a copy: its next user waits
  /// for a later cache command, so the copy is complete before the block is used.
  void drop(BlockId block);

  /// Marks a held block as the target of cache command `command`.
  void begin_move(BlockId block, std::uint64_t command);

  /// The command finished. No effect when the block has been freed or given a later command since.
  void end_move(BlockId block, std::uint64_t command);

  std::int32_t holders(BlockId block) const { return entries_[static_cast<std::size_t>(block)].holders; }
  CacheStatus status() const;

  /// Recounts everything: true when each block is in one state and the counters agree. O(total).
  bool sound() const;

 private:
  struct Entry {
    std::int32_t holders = 0;
    std::uint64_t moved_by = 0;  ///< the unfinished command that writes it; 0 none
  };

  std::vector<Entry> entries_;
  std::vector<BlockId> free_;  ///< a stack: the block freed last is most likely still in the CPU caches
  std::int32_t leased_ = 0;
  std::int32_t moving_ = 0;
};

}  // namespace troupe
