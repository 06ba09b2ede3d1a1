#pragma once
#include <memory>

#include "actors/cache/cache_manager.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

struct CacheParts {
  workers_actor link;
  Log log;
  std::shared_ptr<ipc::BlockNames> names;  ///< null: the names of blocks end with this actor
  PeerBlocks::Tables peers{};              ///< of the instances whose KV memory the workers are given
};

struct CacheState {
  static inline const char* name = "cache";
  CacheParts parts;
  CacheManager cache;
  CacheGrants grants;
  scheduler_actor scheduler;            ///< the sender of the last CacheAsks
  bool swap_failed = false;             ///< it was logged that the swap space fails; once for each worker
  bool looks_for_names = false;         ///< a CopyAhead is under way
  std::int64_t peer_blocks_failed = 0;  ///< as of the last log line about them, as the next
  std::int64_t copied_ahead = 0;
};

/// CACHE MANAGER. actors/cache/cache_manager.h decides; the actor carries the messages.
cache_actor::behavior_type cache_behavior(cache_actor::stateful_pointer<CacheState> self, CacheParts parts);

}  // namespace troupe
