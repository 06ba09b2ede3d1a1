#include "http/connection_deadlines.h"

#include <string>

namespace troupe::http {
namespace {

using std::chrono::seconds;

constexpr auto kLingerTime = seconds(2);

DeadlineVerdict timed_out(const std::string& what, int limit_s) {
  return {Overdue::refuse,
          {Code::invalid_argument, what + " within " + std::to_string(limit_s) + " s", {}, "request_timeout"}};
}

}  // namespace

DeadlineVerdict check_deadlines(const ConnectionProgress& progress, const config::LimitOptions& limits) {
  if (progress.blocked > seconds(limits.write_timeout_s)) return {Overdue::abort, {}};
  switch (progress.phase) {
    case Phase::idle:
      if (progress.in_phase > seconds(limits.idle_timeout_s) && !progress.unsent) return {Overdue::close, {}};
      break;
    case Phase::head:
      if (progress.in_phase <= seconds(limits.header_timeout_s)) break;
      if (!progress.input) return {Overdue::close, {}};
      return timed_out("The headers did not arrive", limits.header_timeout_s);
    case Phase::body: {
      if (progress.in_phase <= seconds(limits.body_timeout_s)) break;
      const double elapsed_s = std::chrono::duration<double>(progress.in_phase).count();
      if (static_cast<double>(progress.body_received) >= elapsed_s * limits.min_body_rate) break;
      return timed_out("The body did not arrive", limits.body_timeout_s);
    }
    case Phase::lingering:
      if (!progress.unsent && progress.in_phase > kLingerTime) return {Overdue::close, {}};
      break;
    case Phase::waiting:
    case Phase::streaming:
    case Phase::closed: break;
  }
  return {};
}

}  // namespace troupe::http
