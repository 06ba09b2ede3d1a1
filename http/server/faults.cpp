#include "http/server/faults.h"

#include <new>

namespace troupe::http {

void Faults::note(FaultPlace place, const std::exception& error) noexcept {
  count_.fetch_add(1, std::memory_order_relaxed);
  unreported_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t faults = unreported_.exchange(0, std::memory_order_relaxed);
  try {
    backend_.faulted(place, error.what(), faults);
  } catch (const std::exception&) {
    unreported_.fetch_add(faults, std::memory_order_relaxed);
  }
}

Status Faults::status_of(const std::exception& error) noexcept {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const Code code = memory ? Code::unavailable : Code::internal;
  try {
    return failure(
        code, memory ? "The server has no memory for this request" : "An internal fault ended this request");
  } catch (const std::bad_alloc&) {
    return {code, "no memory"};  // short enough to need none
  }
}

}  // namespace troupe::http
