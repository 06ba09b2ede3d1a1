#pragma once
// What a process of this server uses, as the kernel counts it.
#include <cstdint>
#include <optional>

namespace troupe::metrics {

struct ProcessUse {
  double cpu_s = 0;  ///< user and system, of all threads since the process began
  std::int64_t resident_bytes = 0;
  std::int32_t threads = 0;
};

/// Nothing when there is no such process.
std::optional<ProcessUse> process_use(std::int64_t pid);

}  // namespace troupe::metrics
