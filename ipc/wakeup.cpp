#include "ipc/wakeup.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace troupe::ipc {

bool Doorbell::park(TimePoint deadline) {
  timespec at{};
  const timespec* until = nullptr;  // no deadline
  if (deadline != TimePoint::max()) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    if (ns <= now_ns()) return false;
    at.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
    at.tv_nsec = static_cast<long>(ns % 1'000'000'000);
    until = &at;
  }
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is what TimePoint counts.
  const long rc = syscall(SYS_futex, &parked_, FUTEX_WAIT_BITSET, 1, until, nullptr, FUTEX_BITSET_MATCH_ANY);
  return rc == 0 || errno != ETIMEDOUT;
}

void Doorbell::wake() {
  parked_.store(0, std::memory_order_relaxed);
  syscall(SYS_futex, &parked_, FUTEX_WAKE, 1);
}

}  // namespace troupe::ipc
