#pragma once
// Blocks of prompts that another instance is computing and that will go on here: they are copied as soon as
// the other instance has named them, while it computes the later ones. When a prompt is handed over, its
// lease finds them, and only what the last step has filled is still to be copied.
//
// A prompt holds its blocks as a lease does, from the first on and without gaps: those that are here already,
// and those that are copied. Sequences come first: where one lacks room, prompts give up what they hold
// (give_up_one()); what has been copied stays cached and may be found. Pure: no CAF, no clock, no I/O.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/cache/copy_commands.h"
#include "actors/cache/peer_blocks.h"
#include "actors/cache/swap_moves.h"
#include "actors/cache_messages.h"
#include "base/ids.h"

namespace troupe {

/// Used by one thread. `pool` is the same one in every call.
class BlocksAhead {
 public:
  /// Copies that have not ended, of all prompts: those of prompts that have been handed over wait behind
  /// them.
  static constexpr std::size_t kMostMoving = 32;
  /// Part of the pool that is not taken for prompts that are still computed.
  static constexpr std::int32_t kKeptFree = 16;
  /// Prompts at a time; more are copied when they are handed over.
  static constexpr std::size_t kMostPrompts = 256;
  /// A prompt whose copies fail so often is copied when it is handed over.
  static constexpr int kMostFailures = 3;

  /// A worker was attached: no block is held, and nothing is expected.
  void clear() {
    prompts_.clear();
    copied_ = 0;
  }

  /// The front will submit a prompt whose first full blocks have these names.
  void expect(std::uint32_t front, const ExpectBlocks& expected, BlockPool& pool);
  /// The prompt has a lease of its own, or will have none. Nothing if it is not expected.
  void forget(const RequestKey& key, BlockPool& pool);
  /// The front is gone.
  void forget_front(std::uint32_t front, BlockPool& pool);
  void forget_all(BlockPool& pool);

  /// Refreshes `peers` and adds copies of the blocks that they have named since, into blocks that `swap`
  /// takes.
  void copy_named(BlockPool& pool, SwapMoves& swap, PeerBlocks& peers, CopyCommands& commands);
  /// A command has ended. A prompt of which a copy has failed begins again.
  void copies_ended(BlockPool& pool);

  /// Ends the prompt that was expected last, but for that of `spared`. False: there is none.
  bool give_up_one(const RequestKey& spared, BlockPool& pool);

  /// True while blocks of some prompt are still to come.
  bool waits() const;
  std::size_t prompts() const { return prompts_.size(); }
  /// Blocks whose copy has been asked for since the worker was attached.
  std::int64_t copied() const { return copied_; }
  /// Adds how many prompts hold each block.
  void add_holders(std::vector<std::int32_t>& holders) const;

 private:
  struct Prompt {
    RequestKey key{};
    std::uint32_t front = 0;
    std::vector<BlockHash> names;
    std::vector<BlockId> blocks;  ///< held: they have the first names, or are being filled
    std::size_t arrived = 0;      ///< of these, no copy writes the first so many
    int failures = 0;
  };
  static void release(Prompt& prompt, BlockPool& pool);

  std::vector<Prompt> prompts_;  ///< in the order in which they were expected
  std::int64_t copied_ = 0;
};

}  // namespace troupe
