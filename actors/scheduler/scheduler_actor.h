#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "actors/link/front_port.h"
#include "actors/metrics/draft_alarm.h"
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
  std::vector<std::shared_ptr<FrontPort>> fronts;  ///< take tokens and counters; by FrontSubmit::front
  Log log;
  grammar_actor grammar;  ///< null: sequences with a grammar are refused
  config::DraftMethod drafts = config::DraftMethod::none;
};

struct SchedulerState {
  static inline const char* name = "scheduler";
  SchedulerParts parts;
  std::optional<Scheduler> scheduler;
  StepOutput output;
  CacheStatus kv;  ///< as of the last grants
  metrics::DraftAlarm draft_alarm;
};

/// SCHEDULER. actors/scheduler/scheduler.h decides; the actor carries the messages.
scheduler_actor::behavior_type scheduler_behavior(scheduler_actor::stateful_pointer<SchedulerState> self,
                                                  SchedulerParts parts);

}  // namespace troupe
