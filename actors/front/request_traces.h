#pragma once
// The ways of the last requests through the actors, taken from the events that the actors log. Bounded, and
// without any text of a request: an event's numbers, flags and error code are kept.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace troupe {

/// One event of a request.
struct TraceStep {
  std::string actor;
  std::string event;
  std::int64_t after_ns = 0;  ///< since the request's first event
  std::string details;        ///< "tokens=12 ms=0.4"
};

struct RequestTrace {
  std::string id;
  std::int64_t began_ns = 0;  ///< of now_ns()
  std::vector<TraceStep> steps;
};

/// The fields of an event as TraceStep::details: numbers, flags and the error code, no text of a request.
std::string trace_details(std::span<const LogField> fields);

/// Thread safe.
class RequestTraces final : public LogObserver {
 public:
  static constexpr std::size_t kMaxRequests = 256;
  static constexpr std::size_t kMaxSteps = 32;  ///< of one request; later ones are left out

  /// Keeps events whose first field is req. A request begins with its admission or its refusal; events of a
  /// request that is not known are ignored, so requests that need no actor leave nothing here.
  void event(std::string_view actor, std::string_view event, std::span<const LogField> fields) override;

  /// The same of an event of another process, at `at_ns` of now_ns().
  void add(std::string_view id, std::string_view actor, std::string_view event, std::string details,
           std::int64_t at_ns);

  /// The last `count`, newest first.
  std::vector<RequestTrace> latest(std::size_t count) const;
  /// The newest request with this id.
  std::optional<RequestTrace> find(std::string_view id) const;

 private:
  RequestTrace* known(std::string_view id);

  mutable std::mutex mutex_;
  std::deque<RequestTrace> requests_;  // oldest first
};

}  // namespace troupe
