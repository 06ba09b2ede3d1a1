// Synthetic traces: rates, lengths, and texts of chats that begin with their earlier turns.
#include "bench/scheduler_sim/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe::bench {
namespace {

double last_arrival(const Trace& trace) {
  double last = 0;
  for (const TraceTurn& turn : trace.turns) last = turn.opens_chat ? turn.at_s : last;
  return last;
}

TEST(Trace, ArrivesAtItsRateInBurstsOrWithoutThem) {
  std::vector<double> variation;
  for (const double burst : {1.0, 20.0}) {
    TraceOptions o;
    o.requests = 40'000;
    o.rate = 10;
    o.burst = burst;
    const Trace trace = make_trace(o);
    const double mean = last_arrival(trace) / 40'000;
    EXPECT_NEAR(mean, 0.1, 0.01) << burst;
    double squares = 0;
    for (std::size_t i = 1; i < trace.turns.size(); ++i) {
      const double gap = trace.turns[i].at_s - trace.turns[i - 1].at_s;
      ASSERT_GE(gap, 0);
      squares += (gap - mean) * (gap - mean);
    }
    variation.push_back(std::sqrt(squares / 40'000) / mean);
  }
  EXPECT_NEAR(variation[0], 1, 0.05) << "a Poisson process";
  EXPECT_GT(variation[1], 4);
}

TEST(Trace, LengthsAreLogNormal) {
  TraceOptions o;
  o.requests = 20'001;
  o.prompt = {300, 1.0, 1 << 20};
  Trace trace = make_trace(o);
  std::vector<double> logs;
  for (const TraceTurn& turn : trace.turns) logs.push_back(std::log(turn.prompt_tokens));
  std::ranges::sort(logs);
  EXPECT_NEAR(std::exp(logs[10'000]), 300, 10);
  EXPECT_NEAR(logs[16'827] - logs[10'000], 1.0, 0.05) << "84 % lie below one sigma above the median";
}

TEST(Trace, ALaterTurnBeginsWithAllBeforeIt) {
  TraceOptions o;
  o.requests = 5000;
  o.mean_turns = 4;
  o.systems = 3;
  o.system_tokens = 128;
  const Trace trace = make_trace(o);
  double turns = 0;
  for (std::size_t i = 0; i < trace.turns.size(); ++i) {
    const TraceTurn& turn = trace.turns[i];
    turns += turn.opens_chat ? 1 : 0;
    if (turn.opens_chat) {
      EXPECT_GT(turn.prompt_tokens, 128);
      continue;
    }
    const TraceTurn& before = trace.turns[i - 1];
    EXPECT_EQ(before.next, i);
    EXPECT_EQ(before.chat, turn.chat);
    EXPECT_GT(turn.prompt_tokens, before.prompt_tokens + before.output_tokens);
  }
  EXPECT_NEAR(5000 / turns, 4, 0.4);
}

TEST(Trace, AClosedLoopGivesEachClientOneRequestAfterTheOther) {
  TraceOptions o;
  o.requests = 10;
  o.clients = 4;
  const Trace trace = make_trace(o);
  ASSERT_EQ(trace.turns.size(), 10u);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(trace.turns[i].opens_chat, i < 4);
    EXPECT_EQ(trace.turns[i].next, i + 4 < 10 ? i + 4 : kNoTurn);
    EXPECT_EQ(trace.turns[i].chat, i) << "each has a text of its own";
  }
}

TEST(Trace, TextsDifferButForTheirSystemPrompt) {
  TraceOptions o;
  o.requests = 50;
  o.systems = 1;
  o.system_tokens = 64;
  const Trace trace = make_trace(o);
  int equal = 0;
  for (std::int32_t p = 0; p < 512; ++p) {
    const TokenId a = trace.token(0, p), b = trace.token(1, p);
    EXPECT_EQ(a, trace.token(0, p));
    ASSERT_TRUE(a >= 0 && a < kTraceStop);
    if (p < 64) {
      EXPECT_EQ(a, b);
    }
    equal += p >= 64 && a == b ? 1 : 0;
  }
  EXPECT_LT(equal, 3);
}

}  // namespace
}  // namespace troupe::bench
