#pragma once
// Time is monotonic everywhere (a jump of the wall clock must be harmless); the wall clock is read
// only to print a date.
#include <ctime>

#include <chrono>
#include <cstdint>

namespace troupe {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

/// Nanoseconds of the monotonic clock; the same origin in every process of one boot.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Processor time of the calling thread in nanoseconds. Other work on the machine does not change it.
inline std::int64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace troupe
