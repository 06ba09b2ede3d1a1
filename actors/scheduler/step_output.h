#pragma once
// What the commit of a result yields: tokens for SESSION HOSTs, and counts for METRICS.
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "actors/observation_messages.h"

namespace troupe {

/// What one SESSION HOST of one front has to be sent.
struct HostTokens {
  std::uint32_t front = 0;
  std::uint32_t host = 0;
  StepTokens step;
};

/// The outcome of a commit. Memory is reused from step to step when the caller keeps the object.
struct StepOutput {
  std::vector<HostTokens> hosts;  ///< in no order; those without sequences in this step have an empty `step`
  StepStats stats;                ///< except `kv`, which the CACHE MANAGER knows

  void clear();
};

}  // namespace troupe
