#pragma once
#include <atomic>

#include "actors/engine/heart.h"
#include "base/clock.h"
#include "http/backend.h"

namespace troupe {

/// What the health routes answer: written by the GATEWAY actor and the thread that watches the parts, read by every
/// I/O thread.
class HealthCell {
 public:
  void set(http::Health::State state) { state_.store(state, std::memory_order_release); }
  http::Health::State get() const { return state_.load(std::memory_order_acquire); }

  /// The parts were looked at: `silent` stands still, and outlives every reader; null: none does.
  void looked(TimePoint now, const HeartPart* silent) {
    silent_.store(silent, std::memory_order_release);
    looked_.store(now, std::memory_order_release);
  }
  /// Nobody looks any more.
  void forget() { looked(TimePoint{}, nullptr); }

  http::Health health() const {
    const TimePoint looked = looked_.load(std::memory_order_acquire);
    if (looked != TimePoint{} && Clock::now() - looked > kPatience) return {false, get(), "watcher"};
    const HeartPart* const silent = silent_.load(std::memory_order_acquire);
    if (silent == nullptr) return {true, get(), {}};
    return {!silent->in_engine, get(), silent->name};
  }

 private:
  // Who looks does it every 20 ms.
  static constexpr Duration kPatience = std::chrono::milliseconds(1500);

  std::atomic<http::Health::State> state_{http::Health::State::loading};
  std::atomic<const HeartPart*> silent_{nullptr};
  std::atomic<TimePoint> looked_{};
};

}  // namespace troupe
