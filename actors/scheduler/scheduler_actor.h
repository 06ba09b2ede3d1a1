#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "actors/protocol.h"
#include "actors/scheduler/scheduler.h"
#include "base/log.h"
#include "config/options.h"

namespace troupe {

struct SchedulerParts {
  config::SchedulerOptions options;
  PrefixCaching caching;
  cache_actor cache;
  workers_actor link;
  metrics_actor metrics;
  Log log;
  std::shared_ptr<std::atomic<std::uint64_t>> progress;  ///< counts generated tokens; may be null
  grammar_actor grammar;                                 ///< null: sequences with a grammar are refused
};

struct SchedulerState {
  static inline const char* name = "scheduler";
  SchedulerParts parts;
  std::optional<Scheduler> scheduler;
  std::vector<session_host_actor> hosts;  ///< by SequenceSpec::host; the actor that submitted for it last
  StepOutput output;
  CacheStatus kv;  ///< as of the last grants
};

/// SCHEDULER. actors/scheduler/scheduler.h decides; the actor carries the messages.
scheduler_actor::behavior_type scheduler_behavior(scheduler_actor::stateful_pointer<SchedulerState> self,
                                                  SchedulerParts parts);

}  // namespace troupe
