#pragma once
// The scheduler's simulator: replays a trace through an engine whose worker is a model of its time
// (simulated_engine.h). Discrete events (an arrival, the end of a step) move the clock; nothing sleeps. Not
// modelled: tokenizing, HTTP.
#include <cstdint>
#include <string>
#include <vector>

#include "bench/scheduler_sim/simulated_engine.h"
#include "bench/scheduler_sim/trace.h"
#include "config/options.h"

namespace troupe::bench {

/// Who is scheduled how: options of the scheduler.
struct ReplayPolicy {
  std::string name;
  config::SchedulerOptions scheduler;  ///< max_num_batched_tokens is required
  bool caches = true;                  ///< prefix cache, answers included
};

/// What became of one request. Times in seconds from the start of the trace; negative: it did not happen.
struct RequestOutcome {
  double arrived_s = -1;
  double first_token_s = -1;
  double ended_s = -1;
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  ///< reported ones
  std::int32_t cached_tokens = 0;
  std::int32_t endings = 0;  ///< how often it was reported as ended; 1 when all is well
  bool refused = false;      ///< submit() did not take it

  double ttft_s() const { return first_token_s - arrived_s; }
  double tpot_s() const { return output_tokens > 1 ? (ended_s - first_token_s) / (output_tokens - 1) : 0; }
};

struct ReplayResult {
  std::vector<RequestOutcome> requests;  ///< one per turn of the trace
  double end_s = 0;                      ///< when the last request ended
  double busy_s = 0;                     ///< the device ran a step
  std::uint64_t steps = 0;
  std::uint64_t preempted = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int32_t leases_left = 0;  ///< that the cache manager still holds; 0 when all is well
};

/// Most tokens that a client lets an answer have, beyond its actual length: the scheduler does not know when
/// an answer stops.
inline constexpr std::int32_t kMaxAnswerTokens = 4096;

ReplayResult replay(const Trace& trace, const ReplayPolicy& policy, const ReplayDevice& device);

}  // namespace troupe::bench
