#include "actors/metrics/engine_totals.h"

namespace troupe {

void add_to(CacheStatus& sum, const CacheStatus& engine) {
  sum.total += engine.total;
  sum.free += engine.free;
  sum.cached += engine.cached;
  sum.leased += engine.leased;
  sum.moving += engine.moving;
  sum.evicted += engine.evicted;
  sum.swap.total += engine.swap.total;
  sum.swap.free += engine.swap.free;
  sum.swap.cached += engine.swap.cached;
  sum.swap.moving += engine.swap.moving;
  sum.swap.out += engine.swap.out;
  sum.swap.in += engine.swap.in;
  sum.swap.evicted += engine.swap.evicted;
  sum.swap.failed += engine.swap.failed;
  sum.swap.declined += engine.swap.declined;
  sum.peers.in += engine.peers.in;
  sum.peers.failed += engine.peers.failed;
}

void add_to(SchedulerStatus& sum, const SchedulerStatus& engine) {
  sum.running += engine.running;
  sum.max_running += engine.max_running;
  sum.waiting += engine.waiting;
  sum.max_waiting += engine.max_waiting;
  sum.prompt_tokens += engine.prompt_tokens;
  sum.cached_tokens += engine.cached_tokens;
}

}  // namespace troupe
