#include "base/contain.h"

#include <atomic>
#include <exception>
#include <new>
#include <string>

namespace troupe {
namespace {

std::atomic<FaultHook> fault_hook{nullptr};

struct Fault {
  Code code = Code::internal;
  std::string what;
};

/// Of the exception that is being handled. May throw itself, for want of memory.
Fault current_fault() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Code::unavailable, "no memory"};
  } catch (const std::exception& error) {
    return {Code::internal, error.what()};
  } catch (...) {
    return {Code::internal, "an exception of an unknown type"};
  }
}

}  // namespace

void set_fault_hook(FaultHook hook) { fault_hook = hook; }

namespace detail {

void reach(std::string_view place) {
  if (const FaultHook hook = fault_hook.load(std::memory_order_relaxed)) hook(place);
}

Status caught(const Log& log, std::string_view place, std::string_view request_id) noexcept {
  Code code = Code::internal;
  try {
    const Fault fault = current_fault();
    code = fault.code;
    log.error("fault", {kv("place", place), kv("req", request_id), kv("what", fault.what)});
    if (code == Code::unavailable) return failure(code, "The server has no memory for this request");
    return failure(code, "An internal fault ended this request (" + std::string(place) + ")");
  } catch (...) {
    return {code, "internal fault"};  // short enough to need no memory
  }
}

}  // namespace detail
}  // namespace troupe
