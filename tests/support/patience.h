#pragma once
// How long a test waits.
#include <chrono>

namespace troupe::test {

/// At the most, for what ought to happen at once: only a failure takes so long. Machines that run tests are
/// stopped for seconds at a time; a test that asserts less than this asserts something of the machine.
inline constexpr std::chrono::milliseconds kPatience{30'000};

}  // namespace troupe::test
