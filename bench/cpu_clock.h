#pragma once
// CPU time, for bench programs whose figure must not count what others do on the machine.
#include <time.h>

namespace troupe::bench {

/// Microseconds of CPU time of this thread, or by another clock of clock_gettime().
inline double cpu_us(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec t{};
  clock_gettime(clock, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}

}  // namespace troupe::bench
