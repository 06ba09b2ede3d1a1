#include "http/faults.h"

namespace troupe::http {

void Faults::note(FaultPlace place, const std::exception& error) noexcept {
  count_.fetch_add(1, std::memory_order_relaxed);
  untold_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t faults = untold_.exchange(0, std::memory_order_relaxed);
  try {
    backend_.faulted(place, error.what(), faults);
  } catch (const std::exception&) {
    untold_.fetch_add(faults, std::memory_order_relaxed);
  }
}

}  // namespace troupe::http
