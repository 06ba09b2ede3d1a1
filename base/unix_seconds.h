#pragma once
#include <chrono>
#include <cstdint>

namespace troupe {

/// The time of day as APIs give it, in seconds since 1970.
inline std::int64_t unix_seconds() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace troupe
