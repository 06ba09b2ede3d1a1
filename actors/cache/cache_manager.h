#pragma once
// Leases on KV blocks, one per sequence, and the copies that forks need. Pure: no CAF, no clock, no I/O.
//
// A lease is the block table of one sequence: entry i holds positions [i·block_tokens, (i+1)·block_tokens).
// It ends by release(), whatever way its sequence ends. A fork shares the parent's full blocks, which
// nobody writes any more, and copies the partly filled one, which both would write: the copy is a
// CacheCommand on the cache ring, and every plan that uses blocks granted with or after it names its id.
//
// What comes next has its place here: grow() is where a prefix index is asked for blocks that hold the
// first positions already (published only after the step that filled them), and where a shortage evicts.
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
  /// A worker is attached: `blocks` blocks, all free; every lease and every unfinished copy is void, and
  /// command ids start at 1 again. Until the first reset there is no block to grant.
  void reset(std::uint32_t epoch, std::int32_t blocks, std::int32_t block_tokens);

  /// Does what `asks` says and fills `grants` (cleared first, its memory reused): one per fork and grow,
  /// in their order. Asks of another epoch change nothing and get no grants. command() then holds the
  /// copies that the grants depend on.
  void answer(const CacheAsks& asks, CacheGrants& grants);

  /// The CacheCommand record made by the last answer(), or empty. Valid until the next answer().
  std::span<const std::byte> command() const { return command_; }

  /// The worker confirmed a command. False when it failed or the record makes no sense: nobody can say
  /// then what the forked blocks hold, and the owner has to give up this epoch.
  [[nodiscard]] bool done(const wire::CacheDone& record);

  /// Blocks of a lease in table order; empty when there is none.
  std::span<const BlockId> table(const RequestKey& key) const;

  std::size_t leases() const { return index_.size(); }
  CacheStatus status() const { return pool_.status(); }

  /// True when every block's holders are exactly the leases that name it. O(blocks + leases).
  bool sound() const;

 private:
  struct Move {
    std::uint64_t command = 0;
    BlockId target = 0;
  };

  bool grow(const GrowAsk& ask, Grant& grant, std::vector<BlockId>& blocks);
  bool fork(const ForkAsk& ask, Grant& grant, std::vector<BlockId>& blocks);
  void release(const RequestKey& key);
  bool room(std::int32_t blocks, std::int32_t keep_free) const;
  std::vector<BlockId>& open_lease(const RequestKey& key);
  void extend(std::vector<BlockId>& lease, std::int32_t to, std::vector<BlockId>& granted);
  void write_command();

  std::uint32_t epoch_ = 0;
  std::int32_t block_tokens_ = 1;
  BlockPool pool_;
  std::vector<std::vector<BlockId>> leases_;  ///< block tables; a freed one keeps its memory
  std::vector<std::uint32_t> unused_;         ///< free entries of leases_
  std::unordered_map<RequestKey, std::uint32_t> index_;
  std::uint64_t last_command_ = 0;
  std::vector<Move> moves_;              ///< unfinished copies, oldest first
  std::vector<wire::BlockCopy> copies_;  ///< of the command being made
  wire::RecordWriter<wire::CacheCommand> writer_;
  std::span<const std::byte> command_;
};

}  // namespace troupe
