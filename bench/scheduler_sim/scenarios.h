#pragma once
// The policies that are compared, and the loads they are compared under.
#include <cstdint>
#include <vector>

#include "bench/scheduler_sim/replay.h"

namespace troupe::bench {

/// FCFS, vLLM's, FastDeploy's V1, ours without preemption, and ours. All have the same device, the same
/// slots, and our cache manager.
std::vector<ReplayPolicy> compared_policies();

struct Scenario {
  TraceOptions trace;  ///< `rate` is the one of the comparison
  ReplayDevice device;
  std::vector<double> rates;  ///< of the picture; empty: not in it
};

/// Chats with shared system prompts; single requests of mixed lengths; bursts with documents among them;
/// mixed lengths again where KV blocks are scarce, where all requests come at once, and from a closed loop of
/// 64 clients; short prompts behind documents of 32,000 tokens. `requests` each.
std::vector<Scenario> scenarios(std::uint32_t requests);

}  // namespace troupe::bench
