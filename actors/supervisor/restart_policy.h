#pragma once
// When a dead child is restarted, and when the whole server gives up. Pure: time is an argument.
#include <deque>
#include <optional>

#include "base/clock.h"

namespace troupe::supervisor {

struct RestartLimits {
  int max_restarts = 3;  ///< in one window; one more death ends the server
  Duration window = std::chrono::seconds(60);
  Duration first_delay = std::chrono::milliseconds(100);  ///< doubles with every restart in the window
  Duration max_delay = std::chrono::seconds(5);
};

/// Before the restart that follows so many deaths, 1 or more.
Duration delay_after(int deaths, const RestartLimits& limits);

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  /// A child has died. Returns the delay before its restart; nullopt when the limit is exceeded. `came_up`:
  /// it had got ready; one that had not, however long it took, counts with those before it.
  std::optional<Duration> died(TimePoint now, bool came_up = true);

  /// The same for a child whose death is a part of one that died() was told of.
  Duration delay() const;

  /// Requests were answered, or tokens generated: earlier deaths no longer count.
  void served() { deaths_.clear(); }

  /// Deaths that count, including the last one.
  int deaths() const { return static_cast<int>(deaths_.size()); }
  const RestartLimits& limits() const { return limits_; }

 private:
  RestartLimits limits_;
  std::deque<TimePoint> deaths_;
};

}  // namespace troupe::supervisor
