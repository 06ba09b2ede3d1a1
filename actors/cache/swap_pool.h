#pragma once
// The blocks of the swap space: host memory (or a file) that holds the contents of KV blocks that were
// evicted. It has an index and an order of last use of its own. A block is in exactly one of three states, so
// that free + cached + moving == total holds after every call:
//
//   free    it may be taken
//   cached  it holds contents that can be found; the least recently used one is taken when none is free
//   moving  a copy to it or from it has not ended; it cannot be taken
#include <cstdint>
#include <vector>

#include "actors/cache/prefix_index.h"
#include "actors/cache/use_order.h"
#include "actors/messages.h"
#include "base/ids.h"

namespace troupe {

/// Block ids are [0, total), counted apart from those of the KV memory. Every call is O(1) but forget(),
/// sound() and the constructor. Used by one thread; allocates in the constructor only.
class SwapPool {
 public:
  explicit SwapPool(std::int32_t total = 0);

  /// True when the contents are here, or on their way.
  bool knows(const BlockHash& hash) const { return index_.find(hash) != kNoBlock; }

  /// The block with these contents, or kNoBlock; also kNoBlock while they are still on their way.
  BlockId find(const BlockHash& hash) const;

  /// True when begin_save() finds a block.
  bool can_save() const { return !free_.empty() || cached_.size() > 0; }

  /// A block to copy these contents to, which must not be known. Requires can_save().
  BlockId begin_save(const BlockHash& hash);
  /// That copy has ended; without success the block is free.
  void end_save(BlockId block, bool ok);

  /// A copy from a block that was found begins. Several may run at once.
  void begin_fetch(BlockId block);
  /// One copy from it has ended; without success its contents are forgotten.
  void end_fetch(BlockId block, bool ok);

  /// These contents must not be found any more. Nothing when they are not known.
  void forget(const BlockHash& hash);
  /// Forgets all contents. O(total).
  void forget();

  /// Without the counts of blocks copied, failed and declined.
  SwapStatus status() const;

  /// Recounts everything. O(total).
  bool sound() const;

 private:
  struct Entry {
    std::int32_t copies = 0;  ///< unfinished copies from it, or 1 with `saving`
    bool saving = false;      ///< the unfinished copy is to it
    BlockHash hash{};         ///< zero: contents unknown or forgotten
  };

  Entry& at(BlockId block) { return entries_[static_cast<std::size_t>(block)]; }
  const Entry& at(BlockId block) const { return entries_[static_cast<std::size_t>(block)]; }
  void settle(BlockId block);
  void forget_contents(BlockId block);

  std::vector<Entry> entries_;
  std::vector<BlockId> free_;
  PrefixIndex index_;
  UseOrder cached_;
  std::int32_t moving_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace troupe
