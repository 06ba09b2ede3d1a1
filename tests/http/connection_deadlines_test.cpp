#include "http/server/connection_deadlines.h"

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
  ConnectionProgress progress{.phase = Phase::body, .input = true};
  EXPECT_EQ(verdict(progress, late).overdue, Overdue::no);
  progress.received_lately = kDeadlineLimits.body_timeout_s * kDeadlineLimits.min_body_rate - 1;
  EXPECT_EQ(verdict(progress, late).overdue, Overdue::refuse);
  ++*progress.received_lately;
  EXPECT_EQ(verdict(progress, late).overdue, Overdue::no);
}

// A body of which nearly all came at once has earned no time for the rest.
TEST(ConnectionDeadlines, ThePaceIsThatOfAWindow) {
  const Duration window = seconds(30);
  const TimePoint start{};
  Pace pace;
  EXPECT_FALSE(pace.note(start, 0, window));
  for (int ms = 250; ms < 30'000; ms += 250)
    EXPECT_FALSE(pace.note(start + milliseconds(ms), 8 << 20, window)) << ms;
  std::uint64_t lately = pace.note(start + window, 8 << 20, window).value();
  EXPECT_EQ(lately, 8u << 20);
  for (int ms = 30'250; ms < 70'000; ms += 250) {
    lately = pace.note(start + milliseconds(ms), (8 << 20) + static_cast<std::uint64_t>(ms), window).value();
  }
  EXPECT_GE(lately, 30'000u);
  EXPECT_LE(lately, 35'000u);
  pace.forget();
  EXPECT_FALSE(pace.note(start + seconds(100), 0, window));
}

TEST(ConnectionDeadlines, WhatABufferDoesNotHoldHasToBeReadInTime) {
  for (const Phase phase : {Phase::idle, Phase::streaming, Phase::lingering}) {
    ConnectionProgress progress{.phase = phase, .unsent = true};
    progress.taken_lately = kDeadlineLimits.max_stream_buffer_bytes;
    EXPECT_EQ(verdict(progress, seconds(0)).overdue, Overdue::no);
    --*progress.taken_lately;
    EXPECT_EQ(verdict(progress, seconds(0)).overdue, Overdue::cut);
  }
}

TEST(ConnectionDeadlines, APendingAnswerHasNoneButAReaderThatStopsHas) {
  for (const Phase phase : {Phase::waiting, Phase::streaming}) {
    ConnectionProgress progress{.phase = phase, .unsent = true};
    EXPECT_EQ(verdict(progress, std::chrono::hours(24)).overdue, Overdue::no);
    progress.blocked = seconds(kDeadlineLimits.write_timeout_s) + milliseconds(1);
    EXPECT_EQ(verdict(progress, std::chrono::hours(24)).overdue, Overdue::abort);
  }
}

TEST(ConnectionDeadlines, ABodyThatIsParsedHasALimit) {
  const Duration limit = parse_time(kDeadlineLimits);
  EXPECT_EQ(limit, seconds(60));
  EXPECT_EQ(verdict({.phase = Phase::waiting, .parsing = true}, limit).overdue, Overdue::no);
  const DeadlineVerdict late = verdict({.phase = Phase::waiting, .parsing = true}, limit + milliseconds(1));
  EXPECT_EQ(late.overdue, Overdue::refuse);
  EXPECT_EQ(late.status.code, Code::unavailable);
  config::LimitOptions large;
  large.max_body_bytes = std::int64_t{256} << 20;
  EXPECT_EQ(parse_time(large), 32 * seconds(60)) << "a legal body has its time";
}

}  // namespace
}  // namespace troupe::http
