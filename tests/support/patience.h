#pragma once
// The time limit of waits in tests.
#include <chrono>

namespace troupe::test {

/// How long a test waits, at most, for something that should happen at once; only a failure takes this long.
/// Machines that run tests may be stopped for seconds, so a shorter limit would test the machine.
inline constexpr std::chrono::milliseconds kPatience{30'000};

}  // namespace troupe::test
