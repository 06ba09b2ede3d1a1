#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/engine/watchdog.h"
#include "base/clock.h"
#include "http/server/backend.h"

namespace troupe {

/// What the health routes answer: written by the GATEWAY actor and the thread that watches the parts, read by
/// every I/O thread.
class HealthCell {
 public:
  void set(http::Health::State state) { state_.store(state, std::memory_order_release); }
  http::Health::State get() const { return state_.load(std::memory_order_acquire); }

  /// The parts were looked at: `silent` stands still, and outlives every reader; null: none does.
  void looked(TimePoint now, const WatchdogPart* silent) {
    silent_.store(silent, std::memory_order_release);
    looked_.store(now, std::memory_order_release);
  }
  /// Nobody looks any more.
  void forget() { looked(TimePoint{}, nullptr); }

  /// So many engines there are; 1 unless it is said, before any other call.
  void has_engines(std::size_t count) { silent_in_.resize(std::max<std::size_t>(count, 1)); }

  /// A part of the engine, or a worker of it, stands still; empty: none does. What one of several engines
  /// says counts once all have such a part.
  void engine_looked(std::size_t engine, const std::string& part) {
    const std::lock_guard lock(mutex_);
    silent_in_.at(engine) = part;
    const bool all = std::none_of(silent_in_.begin(), silent_in_.end(),
                                  [](const std::string& one) { return one.empty(); });
    engine_silent_.store(all ? &*names_.insert(silent_in_.front()).first : nullptr,
                         std::memory_order_release);
  }

  http::Health health() const {
    const TimePoint looked = looked_.load(std::memory_order_acquire);
    if (looked != TimePoint{} && Clock::now() - looked > kPatience) return {false, get(), "watcher"};
    const WatchdogPart* const silent = silent_.load(std::memory_order_acquire);
    if (silent != nullptr && silent->in_engine) return {false, get(), silent->name};
    if (const std::string* const part = engine_silent_.load(std::memory_order_acquire))
      return {true, get(), *part};
    return {true, get(), silent != nullptr ? std::string_view(silent->name) : std::string_view()};
  }

 private:
  // Who looks does it every 20 ms.
  static constexpr Duration kPatience = std::chrono::milliseconds(1500);

  std::atomic<http::Health::State> state_{http::Health::State::loading};
  std::atomic<const WatchdogPart*> silent_{nullptr};
  std::atomic<TimePoint> looked_{};
  std::atomic<const std::string*> engine_silent_{nullptr};
  std::mutex mutex_;
  std::set<std::string> names_;  // guarded by mutex_, as the next; of parts: readers keep views of them
  std::vector<std::string> silent_in_ = std::vector<std::string>(1);  // by engine
};

}  // namespace troupe
