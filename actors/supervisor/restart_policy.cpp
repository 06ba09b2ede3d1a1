#include "actors/supervisor/restart_policy.h"

#include <algorithm>

namespace troupe::supervisor {

std::optional<Duration> RestartPolicy::died(TimePoint now, bool came_up) {
  while (came_up && !deaths_.empty() && now - deaths_.front() >= limits_.window) deaths_.pop_front();
  deaths_.push_back(now);
  if (deaths() > limits_.max_restarts) return std::nullopt;
  return delay();
}

Duration RestartPolicy::delay() const { return delay_after(deaths(), limits_); }

Duration delay_after(int deaths, const RestartLimits& limits) {
  Duration delay = limits.first_delay;
  for (int i = 1; i < deaths && delay < limits.max_delay; ++i) delay *= 2;
  return std::min(delay, limits.max_delay);
}

}  // namespace troupe::supervisor
