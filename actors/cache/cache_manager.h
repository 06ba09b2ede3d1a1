#pragma once
// Leases on KV blocks, one per sequence, and the copies that forks need. Pure: no CAF, no clock, no I/O.
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
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/messages.h"
#include "base/ids.h"
#include "ipc/wire.h"

namespace troupe {

/// Owner of every block id. Used by one thread. Allocates when a lease begins, not as it grows in
/// steady state.
class CacheManager {
 public:
  /// A worker was attached. There are `blocks` blocks, all free; every lease and unfinished copy is void, and
  /// command ids start at 1 again. Before the first reset() there is no block to grant.
  void reset(std::uint32_t epoch, std::int32_t blocks, std::int32_t block_tokens);

  /// Carries out `asks` and fills `grants` (cleared first, its memory is reused): one for each fork and grow,
  /// in their order. A lease that begins before reset_prefixes() publishes nothing after it. Asks of another
  /// epoch change nothing and get no grants. Afterwards command() has the copies that the grants depend on.
  void answer(const CacheAsks& asks, CacheGrants& grants);

  /// Forgets all published blocks, and what current leases have computed so far is never published. Returns
  /// how many blocks could be found before. O(blocks).
  std::int32_t reset_prefixes();

  /// The CacheCommand record made by the last answer(), or empty. Valid until the next answer().
  std::span<const std::byte> command() const { return command_; }

  /// The worker confirmed a command. False when the command failed or the record is malformed: the contents
  /// of the forked blocks are then unknown, and the owner has to give up this epoch.
  [[nodiscard]] bool done(const wire::CacheDone& record);

  /// Blocks of a lease in table order; empty when there is none.
  std::span<const BlockId> table(const RequestKey& key) const;

  std::size_t leases() const { return index_.size(); }
  CacheStatus status() const { return pool_.status(); }

  /// For tests: true when every block's holders are exactly the leases that name it. O(blocks + leases).
  bool sound() const;

 private:
  struct Move {
    std::uint64_t command = 0;
    BlockId target = 0;
  };

  struct Lease {
    std::vector<BlockId> blocks;
    bool publishes = true;
  };

  void publish(const PublishAsk& ask, std::span<const BlockHash> hashes);
  void withdraw(const RequestKey& key);
  bool grow(const GrowAsk& ask, std::span<const BlockHash> hashes, Grant& grant,
            std::vector<BlockId>& blocks);
  bool fork(const ForkAsk& ask, Grant& grant, std::vector<BlockId>& blocks);
  void release(const RequestKey& key);
  bool room(std::int32_t blocks, std::int32_t keep_free) const;
  Lease& open_lease(const RequestKey& key);
  void extend(Lease& lease, std::int32_t to, std::vector<BlockId>& granted);
  void write_command();

  std::uint32_t epoch_ = 0;
  std::int32_t block_tokens_ = 1;
  BlockPool pool_;
  std::vector<Lease> leases_;          ///< a freed one keeps its memory
  std::vector<std::uint32_t> unused_;  ///< free entries of leases_
  std::vector<BlockId> found_;         ///< scratch: blocks of a new lease that hold their contents already
  std::unordered_map<RequestKey, std::uint32_t> index_;
  std::uint64_t last_command_ = 0;
  std::vector<Move> moves_;              ///< unfinished copies, oldest first
  std::vector<wire::BlockCopy> copies_;  ///< of the command being made
  wire::RecordWriter<wire::CacheCommand> writer_;
  std::span<const std::byte> command_;
};

}  // namespace troupe
