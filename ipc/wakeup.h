#pragma once
// How one side sleeps until the other has written. The writer makes no syscall while nobody sleeps. A
// Doorbell lies in shared memory, one for each side, and serves all rings that this side reads, so that one
// thread can wait for several rings.
//
//   sleeper                                     ringer
//   parked ← 1          (seq_cst)               publish the record (release)
//   fence, check the rings once more            fence              (seq_cst)
//   futex_wait(parked == 1)                     parked == 1 ? parked ← 0, futex_wake : nothing
//
// The two fences order each side's store before its load: either the sleeper sees the record or the
// ringer sees that it is parked. A ringer killed between its last two steps leaves the sleeper asleep until
// its deadline; the supervisor therefore calls shout() when a process has ended. A sleeper killed while
// parked costs its peer one unnecessary wake.
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/pause.h"

namespace troupe::ipc {

/// Spinning hides the ~20 µs of a wake-up, but takes the core from threads that compute, so it is short.
inline constexpr Duration kDefaultSpin = std::chrono::microseconds(4);

class Doorbell {
 public:
  /// After publishing. No syscall unless the other side is parked.
  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_relaxed) != 0) wake();
  }

  /// Wakes the sleeper whatever the flag says.
  void shout() { wake(); }

  /// Returns true as soon as ready() does, false at the deadline (TimePoint::max(): never). Spins for
  /// at most `spin`, then parks. ready() is cheap, has no side effect and may be called many times.
  template <class Ready>
  bool wait(TimePoint deadline, Duration spin, Ready&& ready) {
    if (ready()) return true;
    if (spin > Duration::zero()) {
      if (spin_some(ready)) return true;  // if the answer comes at once the clock is not read
      const TimePoint now = Clock::now();
      const TimePoint spin_end = deadline - now < spin ? deadline : now + spin;
      do {
        if (spin_some(ready)) return true;
      } while (Clock::now() < spin_end);
    }
    for (;;) {
      parked_.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      const bool seen = ready();
      const bool in_time = seen || park(deadline);
      parked_.store(0, std::memory_order_relaxed);
      if (seen || ready()) return true;
      if (!in_time) return false;
    }
  }

 private:
  template <class Ready>
  static bool spin_some(Ready& ready) {
    for (int i = 0; i < 16; ++i) {
      pause_cpu();
      if (ready()) return true;
    }
    return false;
  }
  /// Sleeps while the flag is set. False when the deadline has passed.
  bool park(TimePoint deadline);
  void wake();

  alignas(64) std::atomic<std::uint32_t> parked_{0};
};
static_assert(sizeof(Doorbell) == 64 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace troupe::ipc
