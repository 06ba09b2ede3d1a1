#pragma once
// What SCHEDULER and CACHE MANAGER say to one another, and what the latter reports: data only, as in
// actors/messages.h.
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace troupe {

/// Blocks of the swap space in each state: total == free + cached + moving. The counts of blocks copied and
/// lost are since the worker attached.
struct SwapStatus {
  std::int32_t total = 0;  ///< 0: there is no swap space
  std::int32_t free = 0;
  std::int32_t cached = 0;    ///< hold contents that can be found
  std::int32_t moving = 0;    ///< named by a copy that has not ended
  std::int64_t out = 0;       ///< blocks copied out of the KV memory
  std::int64_t in = 0;        ///< blocks copied back
  std::int64_t evicted = 0;   ///< cached ones given to other contents
  std::int64_t failed = 0;    ///< copies that the worker could not make
  std::int64_t declined = 0;  ///< not copied, because computing them again is faster
};

/// Blocks copied from the KV memory of other instances since the worker attached.
struct PeerStatus {
  std::int64_t in = 0;
  std::int64_t failed = 0;  ///< whose contents had gone, or that the worker could not copy

  bool operator==(const PeerStatus&) const = default;
};

/// Blocks in each state; total is their sum.
struct CacheStatus {
  std::int32_t total = 0;
  std::int32_t free = 0;
  std::int32_t cached = 0;  ///< held by no sequence; found again until evicted
  std::int32_t leased = 0;
  std::int32_t moving = 0;
  std::int64_t evicted = 0;  ///< cached blocks given to other contents since the worker attached
  SwapStatus swap;
  PeerStatus peers;
};

/// A part of CacheAsks::hashes.
struct HashRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// Blocks [first, first + hashes.count) of `key`'s table hold these contents, written by steps that have come
/// back.
struct PublishAsk {
  RequestKey key;
  std::int32_t first = 0;
  HashRange hashes;
};

/// The block table of `key` has to grow; granted all or nothing.
struct GrowAsk {
  RequestKey key;
  std::int32_t blocks = 0;     ///< wanted length of the block table
  std::int32_t keep_free = 0;  ///< refused when fewer blocks would stay free or cached
  HashRange hashes;  ///< of a new table: the contents of its first blocks, to be looked up in this order
};

/// `child` starts with the first `tokens` positions of `parent`, whose KV is written already, and with
/// a block table of `blocks` entries in all; granted all or nothing.
struct ForkAsk {
  RequestKey parent;
  RequestKey child;
  std::int32_t tokens = 0;
  std::int32_t blocks = 0;
  std::int32_t keep_free = 0;
};

/// One step's wishes of the SCHEDULER, in this order: publishes, withdrawals, releases, forks, grows. Each
/// fork and each grow is answered by one Grant, in the same order.
struct CacheAsks {
  std::uint32_t epoch = 0;
  std::vector<RequestKey> releases;
  std::vector<ForkAsk> forks;
  std::vector<GrowAsk> grows;
  std::vector<PublishAsk> publishes;
  std::vector<RequestKey>
      withdrawals;  ///< leases whose own blocks must not be found again: their step failed
  std::vector<BlockHash> hashes;
  double prefill_tokens_per_s = 0;  ///< measured; 0: not known yet
};

struct Grant {
  RequestKey key;
  std::int32_t first = 0;        ///< index in the block table of the first new entry
  std::int32_t first_block = 0;  ///< index of that entry in CacheGrants::blocks
  std::int32_t blocks = 0;
  bool refused = false;      ///< not enough blocks; ask again when some were released
  std::int32_t cached = 0;   ///< of a new table: so many of its first blocks hold their contents already
  std::int32_t swapped = 0;  ///< of these, found in the swap space
  bool fetching =
      false;  ///< some of them are on their way: a FetchOutcome follows; no plan may name the table before
};

/// All copies for a table that was granted with `fetching` have ended.
struct FetchOutcome {
  RequestKey key;
  bool failed = false;  ///< a copy failed: the lease has been released; ask again
};

/// The answer to CacheAsks, or, without grants, the notice that fetches have ended.
struct CacheGrants {
  std::uint32_t epoch = 0;  ///< of the asks
  std::vector<Grant> grants;
  std::vector<FetchOutcome> fetched;
  std::vector<BlockId> blocks;
  std::uint64_t last_command = 0;  ///< plans that use these blocks depend on it
  CacheStatus status;
};

/// A prompt is computed by another instance and will go on here, as the sequence `key`: its blocks are copied
/// as soon as that instance has named them.
struct ExpectBlocks {
  RequestKey key;
  std::vector<BlockHash> names;  ///< of its full blocks, in order
};

/// Expected prompts that will not go on here, or that have ended; unknown keys are ignored.
struct ForgetBlocks {
  std::vector<RequestKey> keys;
};

/// Names may have come of prompts that are expected; CACHE MANAGER tells itself.
struct CopyAhead {};

/// Forget every published block; from GATEWAY. Answered with how many could be found before.
struct ResetPrefixCache {};

}  // namespace troupe
