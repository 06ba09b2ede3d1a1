#pragma once
// The set of all KV blocks, how many sequences hold each, and which contents can be found again. A block is
// in exactly one of four states, so that free + cached + leased + moving == total holds after every call:
//
//   free     no sequence holds it; it may be taken
//   cached   no sequence holds it, but its contents are published and may be found again; it may be taken
//            when no block is free
//   leased   one or more sequences hold it; a block shared by several is counted once
//   moving   held, and the target of a copy that the worker has not confirmed yet
//
// A block remembers the last unfinished cache command that reads or writes it (use(), used_by()). It may be
// taken meanwhile: the plan or command that writes it next runs after that command.
//
// Cached blocks are evicted in the order in which their last holders dropped them. A holder drops its blocks
// from the end of its table, and a sequence that holds a block holds the ones before it. So a prefix never
// loses its beginning before its end. The exception are two sequences that computed the same
// block at the same time. Only one of the two copies is found; when the other sequence goes on longer, its
// later blocks may outlive the copy that is found. They are then of no use until drop() publishes the other
// copy, or they are evicted.
//
// With a table of names (ipc/block_names.h) the pool keeps there which blocks hold published contents that no
// copy writes any more, so that another pool over the same memory can restore() them. The table's entry of a
// block is cleared before take() or begin_fill() returns, and so before anything can write the block.
//
// Cached blocks that will be evicted next can be marked as saved: someone has copied their contents, or
// decided against it. The saved ones are the oldest, without gaps.
#include <cstdint>
#include <vector>

#include "actors/cache/prefix_index.h"
#include "actors/cache/use_order.h"
#include "actors/messages.h"
#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe {

/// Reference counts over block ids [0, total). Every call is O(1) but sound(), forget(), restore() and the
/// constructor. Used by one thread; allocates in the constructor and in restore() only.
class BlockPool {
 public:
  /// All blocks are free. `names` is borrowed and may be null; what it holds has to be restored or cleared
  /// before any other call.
  explicit BlockPool(std::int32_t total = 0, ipc::BlockNames* names = nullptr);

  /// Blocks that the table names are cached from now on. The last blocks of chains are evicted first. Of
  /// several blocks with one name the first is cached; the others, and ids that this pool has not, lose their
  /// names. O(total).
  void restore();

  /// Blocks that take() can give: free and cached ones.
  std::int32_t available() const { return static_cast<std::int32_t>(free_.size()) + cached_.size(); }

  /// A block whose contents are not published, held once by the caller. Evicts the least recently used cached
  /// block when none is free. Requires available() > 0.
  BlockId take();

  /// Adds a holder to a held or cached block.
  void share(BlockId block);

  /// Removes a holder. Without holders a published block is cached, another one is free, even while a copy
  /// reads or writes it.
  void drop(BlockId block);

  /// The contents of a held block are complete and will not change. Changes nothing when they are published
  /// already. When a held block has the same contents, that one is found as long as it is held. A cached one
  /// is free from now on: nobody needs the contents twice. `place` is the block's index in its chain.
  void publish(BlockId block, const BlockHash& hash, std::int32_t place);

  /// The block's contents must not be found any more. Requires that it is held.
  void withdraw(BlockId block);

  /// The block with these contents, or kNoBlock. share() it before any other call.
  BlockId find(const BlockHash& hash) const { return index_.find(hash); }

  /// Withdraws all blocks; cached ones become free. Returns how many could be found before. O(total).
  std::int32_t forget();

  /// Cache command `command` reads the block, or writes it. A block that is written is held.
  void use(BlockId block, std::uint64_t command, bool writes);

  /// A command that is not made yet will write the held block: it counts as moving from now on.
  void begin_fill(BlockId block);

  /// The command ended. Nothing when a later one uses the block. With `failed`, what it was to write must not
  /// be found, and is not: the contents of a block that is still its target are withdrawn.
  void end_use(BlockId block, std::uint64_t command, bool failed = false);

  /// The last unfinished command that reads or writes the block; 0 none.
  std::uint64_t used_by(BlockId block) const { return at(block).used_by; }
  /// True while the block's contents are being written by a command.
  bool filling(BlockId block) const { return at(block).filling; }
  /// Name of the published contents, or zero.
  const BlockHash& contents(BlockId block) const { return at(block).hash; }

  /// The block that take() will evict; kNoBlock when it takes a free one, or there is none.
  BlockId next_victim() const { return free_.empty() ? cached_.oldest() : kNoBlock; }
  /// Blocks that take() can give before it evicts one that is not saved.
  std::int32_t ready() const { return static_cast<std::int32_t>(free_.size()) + saved_; }
  /// The oldest cached block that is not saved, or kNoBlock.
  BlockId next_unsaved() const { return unsaved_; }
  bool saved(BlockId block) const { return at(block).saved; }
  /// Marks next_unsaved() as saved, as long as it is cached.
  void mark_saved();

  std::int32_t holders(BlockId block) const { return entries_[static_cast<std::size_t>(block)].holders; }
  CacheStatus status() const;

  /// Recounts everything: true when each block is in one state, every published one can be found or has an
  /// equal that can, and the counters agree. O(total).
  bool sound() const;

 private:
  struct Entry {
    std::int32_t holders = 0;
    std::int32_t place = 0;     ///< of published contents: index in their chain
    std::uint64_t used_by = 0;  ///< the last unfinished command that reads or writes it; 0 none
    bool filling = false;  ///< an unfinished command writes what the hash names, or what its holder waits for
    bool saved = false;
    BlockHash hash{};  ///< of published contents; zero: not published
  };

  Entry& at(BlockId block) { return entries_[static_cast<std::size_t>(block)]; }
  const Entry& at(BlockId block) const { return entries_[static_cast<std::size_t>(block)]; }
  void keep_name(BlockId block);
  void clear_name(BlockId block) {
    if (names_ != nullptr) names_->clear(block);
  }
  void append(BlockId block);
  void unlink(BlockId block);

  ipc::BlockNames* names_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<BlockId> free_;  ///< a stack: the block freed last is most likely still in the CPU caches
  PrefixIndex index_;
  UseOrder cached_;
  BlockId unsaved_ = kNoBlock;  ///< the oldest cached block that is not saved
  std::int32_t saved_ = 0;      ///< cached and saved blocks: those older than unsaved_
  std::int32_t leased_ = 0;
  std::int32_t moving_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace troupe
