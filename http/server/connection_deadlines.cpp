#include "http/server/connection_deadlines.h"

#include <string>

namespace troupe::http {
namespace {

using std::chrono::seconds;

constexpr auto kLingerTime = seconds(2);

DeadlineVerdict timed_out(const std::string& what, int limit_s) {
  return {
      Overdue::refuse,
      {Code::invalid_argument, what + " within " + std::to_string(limit_s) + " s", {}, "request_timeout"}};
}

}  // namespace

std::optional<std::uint64_t> Pace::note(TimePoint now, std::uint64_t total, Duration window) {
  const std::size_t size = notes_.size();
  const auto at = [&](std::size_t i) -> Note& { return notes_[i % size]; };
  if (count_ == 0 || now - at(count_ - 1).time >= window / 8) at(count_++) = {now, total};
  std::optional<std::uint64_t> moved;
  for (std::size_t i = count_ > size ? count_ - size : 0; i < count_ && now - at(i).time >= window; ++i) {
    moved = total - at(i).total;
  }
  return moved;
}

Duration parse_time(const config::LimitOptions& limits) {
  constexpr std::int64_t kPart = 8 << 20;
  return seconds(60) * ((limits.body_bytes() + kPart - 1) / kPart);
}

DeadlineVerdict check_deadlines(const ConnectionProgress& progress, const config::LimitOptions& limits) {
  if (progress.blocked > seconds(limits.write_timeout_s)) return {Overdue::abort, {}};
  if (progress.taken_lately &&
      *progress.taken_lately < static_cast<std::uint64_t>(limits.max_stream_buffer_bytes)) {
    return {Overdue::cut, {}};
  }
  switch (progress.phase) {
    case Phase::idle:
      if (progress.in_phase > seconds(limits.idle_timeout_s) && !progress.unsent) return {Overdue::close, {}};
      break;
    case Phase::head:
      if (progress.in_phase <= seconds(limits.header_timeout_s)) break;
      if (!progress.input) return {Overdue::close, {}};
      return timed_out("The headers did not arrive", limits.header_timeout_s);
    case Phase::body: {
      const std::uint64_t least = std::uint64_t{static_cast<std::uint32_t>(limits.min_body_rate)} *
                                  static_cast<std::uint32_t>(limits.body_timeout_s);
      if (progress.received_lately.value_or(least) >= least) break;
      return timed_out("The body did not arrive", limits.body_timeout_s);
    }
    case Phase::lingering:
      if (!progress.unsent && progress.in_phase > kLingerTime) return {Overdue::close, {}};
      break;
    case Phase::waiting:
      if (!progress.parsing || progress.in_phase <= parse_time(limits)) break;
      return {Overdue::refuse,
              failure(Code::unavailable, "The body could not be parsed in time: try again later")};
    case Phase::streaming:
    case Phase::closed: break;
  }
  return {};
}

}  // namespace troupe::http
