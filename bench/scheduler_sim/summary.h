#pragma once
// What a replay is judged by.
#include <cstdint>

#include "bench/scheduler_sim/replay.h"

namespace troupe::bench {

/// A request is good when its first token came within first_s plus per_prompt_token_s for each token of its
/// prompt, and the mean time between its later tokens was at most between_s.
struct GoodBounds {
  double first_s = 0.5;
  double per_prompt_token_s = 50e-6;  ///< a third of the speed at which the device computes prompts
  double between_s = 0.03;
};

/// Prompts that add at most so many tokens to their chat are short.
inline constexpr std::int32_t kShortPrompt = 256;

/// Of the requests that arrived until the last chat was opened: afterwards the load sinks. Of all in a closed
/// loop. Times in milliseconds.
struct ReplaySummary {
  double goodput = 0;       ///< good requests a second
  double good_share = 0;    ///< of all requests
  double tokens_per_s = 0;  ///< output tokens of the whole replay, its end included
  double ttft_p50 = 0, ttft_p99 = 0;
  double tpot_p50 = 0, tpot_p99 = 0;
  double short_ttft_p99 = 0;  ///< of short prompts
  /// Jain's index over the requests' speeds, each relative to that of the same request alone on an idle
  /// device: 1 when all are slowed down equally, 1/n when one has everything.
  double fairness = 0;
  double hit_rate = 0;  ///< of prompt tokens
  double busy = 0;      ///< share of the time in which the device ran a step
  std::uint64_t preempted = 0;
};

ReplaySummary summarise(const Trace& trace, const ReplayResult& result, const ReplayDevice& device,
                        const GoodBounds& bounds = {});

}  // namespace troupe::bench
