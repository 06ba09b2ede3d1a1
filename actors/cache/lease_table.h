#pragma once
// The block tables of all sequences, one lease for each. Knows which block is at which place of which table;
// what the blocks hold and who may take them is the BlockPool's.
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/cache/block_pool.h"
#include "actors/messages.h"
#include "base/ids.h"

namespace troupe {

/// Place of a lease in its LeaseTable, valid until the lease is closed.
using LeaseIndex = std::uint32_t;
inline constexpr LeaseIndex kNoLease = ~LeaseIndex{0};

/// The block table of one sequence: entry i holds positions [i·block_tokens, (i+1)·block_tokens).
struct Lease {
  std::vector<BlockId> blocks;
  bool publishes = true;     ///< its full blocks may be found by others
  std::int32_t fetched = 0;  ///< while it waits for copies: so many of its first blocks are checked for them
  std::int32_t arrived = 0;  ///< and no copy writes the first `arrived` of these any more
};

/// Used by one thread. Finding, opening and closing a lease is O(1); a closed lease keeps its memory for the
/// next one.
class LeaseTable {
 public:
  /// Closes every lease.
  void clear();

  /// The open lease of a sequence; kNoLease: it has none.
  LeaseIndex find(const RequestKey& key) const;
  /// A new lease without blocks that publishes. Requires that the sequence has none. References of at() end.
  LeaseIndex open(const RequestKey& key);
  /// Ends an open lease, with its wait for copies. Its blocks are forgotten: the caller has dropped them from
  /// the pool.
  void close(const RequestKey& key);

  Lease& at(LeaseIndex lease) { return leases_[lease]; }
  const Lease& at(LeaseIndex lease) const { return leases_[lease]; }
  std::size_t size() const { return index_.size(); }

  /// No lease that is open now publishes any more.
  void stop_publishing();

  /// Copies to some of the first `blocks` blocks of an open lease are under way; end_fetches() reports their
  /// end.
  void await_fetch(const RequestKey& key, std::int32_t blocks);
  /// Appends to `ended` the leases for which no copy is under way any more, and forgets that they wait. One
  /// has failed when a block that it waited for lost its contents. O(waiting leases).
  void end_fetches(const BlockPool& pool, std::vector<FetchOutcome>& ended);

  /// How many leases name each of the blocks [0, total). O(total + blocks of all leases).
  std::vector<std::int32_t> holders(std::int32_t total) const;

 private:
  std::vector<Lease> leases_;
  std::vector<LeaseIndex> unused_;  ///< free entries of leases_
  std::unordered_map<RequestKey, LeaseIndex> index_;
  std::vector<RequestKey> fetching_;  ///< leases that wait for copies
};

}  // namespace troupe
