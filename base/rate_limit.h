#pragma once
// For events that may come in floods, such as what hostile clients cause: lets one of them through in each
// period and counts the others.
#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace troupe {

/// Any thread; never waits.
class RateLimit {
 public:
  explicit RateLimit(Duration period) : period_(period) {}

  /// 0: too soon after the last one that was let through. Else the number of events since that one, with this
  /// one.
  std::uint64_t admit(TimePoint now) {
    held_.fetch_add(1, std::memory_order_relaxed);
    auto next = next_.load(std::memory_order_relaxed);
    const auto at = now.time_since_epoch().count();
    if (at < next) return 0;
    if (!next_.compare_exchange_strong(next, at + period_.count(), std::memory_order_relaxed)) return 0;
    return held_.exchange(0, std::memory_order_relaxed);
  }

 private:
  const Duration period_;
  std::atomic<TimePoint::rep> next_{std::numeric_limits<TimePoint::rep>::min()};
  std::atomic<std::uint64_t> held_{0};
};

}  // namespace troupe
