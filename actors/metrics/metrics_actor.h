#pragma once
#include "actors/metrics/registry.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

struct MetricsState {
  static inline const char* name = "metrics";
  metrics::Registry registry{metrics::Constants{}};
};

/// METRICS. May be restarted: its counters then begin at zero, as after any restart.
metrics_actor::behavior_type metrics_behavior(metrics_actor::stateful_pointer<MetricsState> self,
                                              metrics::Constants constants, Log log);

}  // namespace troupe
