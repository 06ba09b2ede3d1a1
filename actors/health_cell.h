#pragma once
#include <atomic>

#include "actors/engine/heart.h"
#include "http/backend.h"

namespace troupe {

/// What the health routes answer: written by the GATEWAY actor and the thread that watches the parts, read by every
/// I/O thread.
class HealthCell {
 public:
  void set(http::Health::State state) { state_.store(state, std::memory_order_release); }
  http::Health::State get() const { return state_.load(std::memory_order_acquire); }

  /// Names the part that stands still, which outlives every reader; null: none does.
  void set_silent(const HeartPart* part) { silent_.store(part, std::memory_order_release); }

  http::Health health() const {
    const HeartPart* const silent = silent_.load(std::memory_order_acquire);
    if (silent == nullptr) return {true, get(), {}};
    return {!silent->in_engine, get(), silent->name};
  }

 private:
  std::atomic<http::Health::State> state_{http::Health::State::loading};
  std::atomic<const HeartPart*> silent_{nullptr};
};

}  // namespace troupe
