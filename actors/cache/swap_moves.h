#pragma once
// What is copied to the swap space of a worker and comes back from there: contents that are about to be
// evicted, and those that a new lease finds. Each copy must be worth it (RestoreJudge) and have room
// (SwapPool, CopyCommands).
#include <cstdint>
#include <span>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/cache/copy_commands.h"
#include "actors/cache/peer_blocks.h"
#include "actors/cache/restore_judge.h"
#include "actors/cache/swap_pool.h"
#include "actors/messages.h"
#include "base/ids.h"

namespace troupe {

/// The swap space of a worker.
struct SwapShape {
  std::int32_t blocks = 0;        ///< 0: none
  std::uint64_t block_bytes = 0;  ///< of one KV block
};

/// A block whose contents a new lease begins with: in the KV memory, or else in the swap space, or else at
/// another instance.
struct FoundBlock {
  BlockId block = kNoBlock;
  BlockId swap = kNoBlock;
  PeerBlock peer{};
};

/// Owner of the swap blocks. Used by one thread. `pool` and `commands` are the same ones in every call.
/// Allocates in reset() only; copies are added to `commands`.
class SwapMoves {
 public:
  /// A worker was attached. The swap space is empty, and nothing is measured yet.
  void reset(const SwapShape& shape, std::int32_t block_tokens);

  void set_prefill_speed(double tokens_per_s) { judge_.set_prefill_speed(tokens_per_s); }

  /// Appends to `found`, which is empty, the blocks that hold the first contents named, up to the first that
  /// are nowhere, or that are not worth a copy. Hold each of them before any other call: a block in `pool` by
  /// share(), a swap block by hold(). `peers` is refreshed when it is needed.
  void look_up(std::span<const BlockHash> hashes, const BlockPool& pool, const CopyCommands& commands,
               PeerBlocks& peers, std::vector<FoundBlock>& found);
  /// A found swap block will be fetched: it is not taken for other contents until that copy has ended.
  void hold(BlockId swap) { swap_.begin_fetch(swap); }
  /// Adds the copy from a held swap block to a block just taken.
  void fetch(BlockId swap, BlockId block, CopyCommands& commands) {
    commands.add(wire::CacheOp::swap_in, {swap, block});
  }

  /// A block of `pool` as BlockPool::take() gives it; the contents that are evicted for it are saved first.
  BlockId take(BlockPool& pool, CopyCommands& commands);
  /// Saves the cached blocks that will be evicted next, so that they are ready to be taken.
  void save_ahead(BlockPool& pool, CopyCommands& commands);

  /// A command has ended; its copies took `seconds`. Nothing for copies within the KV memory.
  void end(const CopyCommands::InFlight& command, bool failed, double seconds);

  /// These contents must not be found any more.
  void forget(const BlockHash& contents) { swap_.forget(contents); }
  /// Forgets all contents. O(blocks).
  void forget() { swap_.forget(); }

  SwapStatus status() const;
  /// Recounts everything. O(blocks).
  bool sound() const { return swap_.sound(); }

 private:
  void save(BlockId block, const BlockPool& pool, CopyCommands& commands);

  SwapPool swap_;
  RestoreJudge judge_;
  std::int64_t out_ = 0;  ///< blocks, as in SwapStatus; so are the next two
  std::int64_t in_ = 0;
  std::int64_t failed_ = 0;
};

}  // namespace troupe
