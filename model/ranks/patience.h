#pragma once
// How long a rank waits for the others.
#include "base/clock.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// From a rank's silence of --worker-timeout to the end of the epoch, at most: the supervisor looks twice a
/// second, kills the rank and waits for its end.
inline constexpr Duration kUntilSilenceEndsTheEpoch = std::chrono::seconds(5);

/// After so long a step counts as hanging. A rank that stands still holds up the steps of all; it is killed
/// for its silence, and the others go on: they must not give up before.
inline Duration step_patience(const Shard& shard, Duration worker_timeout) {
  return shard.alone() ? worker_timeout : worker_timeout + kUntilSilenceEndsTheEpoch;
}

}  // namespace troupe::model
