#pragma once
// A front and its engines on virtual time: a Balancer chooses, each engine is the product's Scheduler and
// CacheManager with a worker that is a model of its time (bench/scheduler_sim/simulated_engine.h). Discrete
// events move the clock; nothing sleeps.
//
// When an engine dies its machine is lost, cache included. The front hears nothing from it, sends it new
// requests for kSilence more, as the product does (EngineRouter::Setup::responds), and gives its requests to
// other engines kNextProcess later, with the tokens that it has of them; so does the product when no new
// process of the engine comes. When an engine refuses a request the others are tried.
//
// Not modelled: tokenizing, HTTP, the network, the engine's own time between two steps.
#include <cstdint>
#include <vector>

#include "bench/cluster_sim/balancers.h"
#include "bench/cluster_sim/workload.h"
#include "bench/scheduler_sim/simulated_engine.h"

namespace troupe::bench {

inline constexpr double kSilence_s = 1.5;
inline constexpr double kNextProcess_s = 1.5;

struct ClusterDevice {
  config::SchedulerOptions scheduler;  ///< of each engine; max_num_batched_tokens is required
  ReplayDevice device;
};

/// ERNIE-4.5-21B-A3B in BF16 on one H200 with 2,000 KV blocks, and the product's defaults.
ClusterDevice cluster_device();

/// Of the requests that were judged.
struct ClusterResult {
  double goodput = 0;     ///< good requests a second
  double good_share = 0;  ///< of all
  double ttft_p50_s = 0, ttft_p99_s = 0;
  double tpot_p50_s = 0, tpot_p99_s = 0;
  std::uint64_t requests = 0;
  std::uint64_t unanswered = 0;  ///< had no first token when the simulation ended, or were refused
  // Of the whole run:
  std::uint64_t moved = 0;    ///< requests given to another engine because theirs had died
  std::uint64_t refused = 0;  ///< by every engine
  std::uint64_t preempted = 0;
  double hit_rate = 0;  ///< of prompt tokens
  double busy = 0;      ///< share of their time in which engines that lived ran steps
};

ClusterResult simulate(const ClusterTrace& trace, const ClusterGoal& goal, const ClusterDevice& device,
                       Balancing balancing);

}  // namespace troupe::bench
