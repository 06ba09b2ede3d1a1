#include "model/cuda/step_limits.h"

#include <algorithm>

namespace troupe::model {

void StepLimits::ended(StepKind kind, Duration took) {
  History& history = kinds_[static_cast<std::size_t>(kind)];
  history.took[history.count++ % kKept] = took;
  // Sorting costs microseconds: now and then is enough for a bound that is 20 times too long.
  if (history.count != kEnough && history.count % (kKept / 4) != 0) return;
  const std::size_t kept = std::min(history.count, kKept);
  std::array<Duration, kKept> sorted = history.took;
  const auto p99 = sorted.begin() + static_cast<std::ptrdiff_t>((kept * 99 + 99) / 100 - 1);
  std::nth_element(sorted.begin(), p99, sorted.begin() + static_cast<std::ptrdiff_t>(kept));
  history.limit = std::max(least_, kTimes * *p99);
}

}  // namespace troupe::model
