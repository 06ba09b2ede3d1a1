#include "http/connection_deadlines.h"

#include <gtest/gtest.h>

namespace troupe::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const config::LimitOptions kDeadlineLimits;

DeadlineVerdict verdict(ConnectionProgress progress, Duration in_phase) {
  progress.in_phase = in_phase;
  return check_deadlines(progress, kDeadlineLimits);
}

TEST(ConnectionDeadlines, AnIdleConnectionIsClosedWhenNothingIsUnsent) {
  const auto limit = seconds(kDeadlineLimits.idle_timeout_s);
  EXPECT_EQ(verdict({.phase = Phase::idle}, limit).overdue, Overdue::no);
  EXPECT_EQ(verdict({.phase = Phase::idle}, limit + milliseconds(1)).overdue, Overdue::close);
  EXPECT_EQ(verdict({.phase = Phase::idle, .unsent = true}, 2 * limit).overdue, Overdue::no);
}

TEST(ConnectionDeadlines, AHeadThatHasBegunIsRefusedAndASilentClientClosed) {
  const auto late = seconds(kDeadlineLimits.header_timeout_s) + milliseconds(1);
  EXPECT_EQ(verdict({.phase = Phase::head, .input = true}, late - milliseconds(1)).overdue, Overdue::no);
  EXPECT_EQ(verdict({.phase = Phase::head}, late).overdue, Overdue::close);
  const DeadlineVerdict refused = verdict({.phase = Phase::head, .input = true}, late);
  EXPECT_EQ(refused.overdue, Overdue::refuse);
  EXPECT_EQ(refused.status.reason, "request_timeout");
}

TEST(ConnectionDeadlines, ABodyMayBeLateWhileItComesFastEnough) {
  const auto late = seconds(kDeadlineLimits.body_timeout_s) + seconds(1);
  const double enough = std::chrono::duration<double>(late).count() * kDeadlineLimits.min_body_rate;
  ConnectionProgress progress{.phase = Phase::body, .input = true};
  progress.body_received = static_cast<std::size_t>(enough) - 1;
  EXPECT_EQ(verdict(progress, late).overdue, Overdue::refuse);
  progress.body_received += 2;
  EXPECT_EQ(verdict(progress, late).overdue, Overdue::no);
}

TEST(ConnectionDeadlines, APendingAnswerHasNoneButAReaderThatStopsHas) {
  for (const Phase phase : {Phase::waiting, Phase::streaming}) {
    ConnectionProgress progress{.phase = phase, .unsent = true};
    EXPECT_EQ(verdict(progress, std::chrono::hours(24)).overdue, Overdue::no);
    progress.blocked = seconds(kDeadlineLimits.write_timeout_s) + milliseconds(1);
    EXPECT_EQ(verdict(progress, std::chrono::hours(24)).overdue, Overdue::abort);
  }
}

}  // namespace
}  // namespace troupe::http
