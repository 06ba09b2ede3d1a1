#pragma once
// Leases on KV blocks, one per sequence, and the copies that forks need. Pure: no CAF, no clock, no I/O.
//
// CacheManager carries out the asks. It has the block tables in LeaseTable, the states of blocks in
// BlockPool, what moves to the swap space and back in SwapMoves, and the copies for the worker in
// CopyCommands.
//
// A lease is the block table of one sequence: entry i holds positions [i·block_tokens, (i+1)·block_tokens).
// release() ends it, whatever way its sequence ends. A fork shares the parent's full blocks, which are never
// written again, and copies the partly filled one, which both would write. The copy is a CacheCommand on the
// cache ring; every plan that uses blocks granted with or after it names its id.
//
// A new lease begins with the published blocks that hold its first positions, when the ask names their
// contents (block_hash.h). Only full blocks are published, each after the step that filled it has come back,
// so a block that is found is never written. What no lease holds stays findable until take() needs the block
// (block_pool.h).
//
// With a swap space (swap_pool.h) the contents of a cached block are copied there before the block is taken
// for something else, and a new lease copies back what it finds there. The copies are cache commands, too,
// and end in any order. Five rules keep them apart:
//  - A KV block may be taken while a copy still reads it. The grant then names the command, so that the plans
//    that write the block run after it; a later copy to the block names it as `after`. Waiting for CacheDone
//    instead would refuse blocks that are almost free. It is rare: the blocks that are evicted next are saved
//    ahead.
//  - A swap block is found only after the copy to it has ended well, and is not taken while a copy reads it.
//  - A copy from another instance's KV memory (peer_blocks.h) counts as failed when what it read has changed
//    meanwhile.
//  - Blocks of prompts that another instance is still computing are copied ahead (blocks_ahead.h). A
//    sequence that lacks room gets the blocks that such a prompt holds.
//  - A lease with blocks that are still being fetched is of no use to plans until its FetchOutcome. When
//    a fetch fails, the lease ends, the contents are forgotten, and its owner asks again: it computes them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/cache/blocks_ahead.h"
#include "actors/cache/copy_commands.h"
#include "actors/cache/lease_table.h"
#include "actors/cache/peer_blocks.h"
#include "actors/cache/swap_moves.h"
#include "actors/messages.h"
#include "base/ids.h"
#include "ipc/block_names.h"
#include "ipc/wire.h"

namespace troupe {

/// Owner of every block id. Used by one thread. Allocates when a lease begins, not as it grows in
/// steady state.
class CacheManager {
 public:
  static constexpr std::size_t kBlocksOfACommand = CopyCommands::kBlocksOfACommand;

  /// Where to keep the names of published blocks, so that another manager finds them; null: nowhere. Before
  /// the first reset().
  void keep_names(std::shared_ptr<ipc::BlockNames> names) { names_ = std::move(names); }

  /// Other instances whose KV blocks the worker can copy. Before the first reset().
  void use_peers(PeerBlocks peers) { peers_ = std::move(peers); }

  /// A worker was attached. There are `blocks` blocks and swap.blocks swap blocks, all free; every lease and
  /// unfinished copy is void, and command ids start at 1 again. Before the first reset() there is no block to
  /// grant.
  ///
  /// `memory` names the life of the worker's KV memory, 0 none. When the kept names are about the same life,
  /// what they name is cached from the start; otherwise they are cleared. What was in the swap space is
  /// forgotten.
  void reset(std::uint32_t epoch, std::int32_t blocks, std::int32_t block_tokens, const SwapShape& swap = {},
             std::uint64_t memory = 0);

  /// Carries out `asks` and fills `grants` (cleared first, its memory is reused): one for each fork and grow,
  /// in their order. A lease that begins before reset_prefixes() publishes nothing after it. Asks of another
  /// epoch change nothing and get no grants. Afterwards command(i) are the copies to send to the worker.
  void answer(const CacheAsks& asks, CacheGrants& grants);

  /// Blocks of a prompt that another instance computes for this front are to be copied as they are named. The
  /// prompt's lease ends that when it begins.
  void expect(std::uint32_t front, const ExpectBlocks& expected) { ahead_.expect(front, expected, pool_); }
  /// These prompts, or those of a front, will not be handed over; what was copied stays cached.
  void forget(const ForgetBlocks& forgotten);
  void forget_front(std::uint32_t front) { ahead_.forget_front(front, pool_); }
  /// Copies what has been named since of expected prompts. Afterwards command(i) are the copies, as of
  /// answer(). O(blocks of the other instances) while blocks are still to come.
  void copy_ahead();
  /// Copies that copy_ahead() has asked for since the worker was attached.
  std::int64_t copied_ahead() const { return ahead_.copied(); }
  /// True while copy_ahead() has to be called again.
  bool copies_ahead() const { return epoch_ != 0 && ahead_.waits(); }

  /// Forgets all published blocks, and what current leases have computed so far is never published. Returns
  /// how many blocks could be found before, those of the swap space not counted. O(blocks).
  std::int32_t reset_prefixes();

  /// The CacheCommand records made by the last answer() or copy_ahead(), in the order in which they are to
  /// be sent. Valid until the next of these.
  std::size_t commands() const { return commands_.records().size(); }
  std::span<const std::byte> command(std::size_t i) const { return commands_.records()[i]; }

  /// The worker reports the end of a command. Fills `update` (cleared first) with the leases whose fetches
  /// have ended. False when a fork's copy failed or the record is malformed: the owner has to give up this
  /// epoch.
  [[nodiscard]] bool done(const wire::CacheDone& record, CacheGrants& update);

  /// Blocks of a lease in table order; empty when there is none.
  std::span<const BlockId> table(const RequestKey& key) const;

  std::size_t leases() const { return leases_.size(); }
  CacheStatus status() const;

  /// For tests: true when every block's holders are exactly the leases that name it. O(blocks + leases).
  bool sound() const;

 private:
  void publish(const PublishAsk& ask, std::span<const BlockHash> hashes);
  void withdraw(const RequestKey& key);
  bool end_peer_copies(const CopyCommands::InFlight& command, bool failed);
  bool grow(const GrowAsk& ask, std::span<const BlockHash> hashes, Grant& grant,
            std::vector<BlockId>& blocks);
  bool fork(const ForkAsk& ask, Grant& grant, std::vector<BlockId>& blocks);
  void release(const RequestKey& key);
  bool room(std::int32_t blocks, std::int32_t keep_free) const;
  std::int32_t lacking(const GrowAsk& ask, std::int32_t held) const;
  void begin_with_found(LeaseIndex at, std::span<const BlockHash> hashes, Grant& grant,
                        std::vector<BlockId>& blocks);
  void extend(Lease& lease, std::int32_t to, std::vector<BlockId>& granted);

  std::uint32_t epoch_ = 0;
  std::int32_t block_tokens_ = 1;
  std::shared_ptr<ipc::BlockNames> names_;
  BlockPool pool_;
  SwapMoves swap_;
  PeerBlocks peers_;
  PeerStatus from_peers_;
  BlocksAhead ahead_;
  LeaseTable leases_;
  CopyCommands commands_;
  std::vector<FoundBlock> found_;  ///< scratch: what a new lease begins with
  std::vector<BlockId> taken_;     ///< of the answer being made: blocks that plans will write
};

}  // namespace troupe
