// The scheduler's simulator: its event loop loses nothing, and its clock and its cost of a step are right.
#include "bench/scheduler_sim/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bench/scheduler_sim/scenarios.h"
#include "bench/scheduler_sim/summary.h"

namespace troupe::bench {
namespace {

ReplayPolicy ours() { return compared_policies().back(); }

TraceOptions some_chats(std::uint32_t requests) {
  TraceOptions o;
  o.requests = requests;
  o.rate = 20;
  o.prompt = {200, 1.0, 800};
  o.output = {150, 0.8, 600};
  o.mean_turns = 3;
  o.systems = 4;
  o.system_tokens = 300;
  o.burst = 5;
  o.documents = 0.05;
  o.document_least = 3000;
  o.document_most = 6000;
  return o;
}

/// A chat of one turn.
Trace one_request(std::int32_t prompt, std::int32_t output) {
  Trace trace;
  trace.chats.emplace_back();
  trace.turns.push_back({.at_s = 1, .prompt_tokens = prompt, .output_tokens = output});
  return trace;
}

TEST(Replay, EveryRequestEndsOnceWithAllOfItsTokens) {
  const Trace trace = make_trace(some_chats(2000));
  for (const ReplayPolicy& policy : compared_policies()) {
    for (const std::int32_t blocks : {200, 21'000}) {
      ReplayDevice device;
      device.kv_blocks = blocks;
      device.slots = 64;
      const ReplayResult result = replay(trace, policy, device);
      ASSERT_EQ(result.requests.size(), trace.turns.size());
      std::int64_t prompts = 0;
      for (std::size_t i = 0; i < trace.turns.size(); ++i) {
        const RequestOutcome& r = result.requests[i];
        ASSERT_FALSE(r.refused);
        ASSERT_EQ(r.endings, 1) << policy.name << ", request " << i;
        ASSERT_EQ(r.prompt_tokens, trace.turns[i].prompt_tokens);
        ASSERT_EQ(r.output_tokens, trace.turns[i].output_tokens) << policy.name << ", request " << i;
        ASSERT_LT(r.arrived_s, r.first_token_s);
        ASSERT_LE(r.first_token_s, r.ended_s);
        ASSERT_LE(r.ended_s, result.end_s);
        ASSERT_LT(r.cached_tokens, r.prompt_tokens);
        if (!trace.turns[i].opens_chat) {
          ASSERT_NEAR(r.arrived_s, result.requests[i - 1].ended_s + trace.turns[i].at_s, 1e-9);
        }
        prompts += r.prompt_tokens;
      }
      EXPECT_EQ(result.leases_left, 0);
      EXPECT_EQ(result.prompt_tokens, prompts);
      EXPECT_GT(result.cached_tokens, 0);
      EXPECT_LE(result.busy_s, result.end_s);
      EXPECT_EQ(result.preempted > 0, blocks == 200 && policy.scheduler.preempts) << policy.name;
    }
  }
}

TEST(Replay, TheSameTraceGivesTheSameResult) {
  const Trace trace = make_trace(some_chats(500));
  const ReplayResult a = replay(trace, ours(), {}), b = replay(trace, ours(), {});
  EXPECT_EQ(a.steps, b.steps);
  for (std::size_t i = 0; i < trace.turns.size(); ++i) {
    EXPECT_EQ(a.requests[i].first_token_s, b.requests[i].first_token_s);
    EXPECT_EQ(a.requests[i].ended_s, b.requests[i].ended_s);
  }
}

TEST(Replay, ALoneRequestTakesWhatItsStepsCost) {
  const ReplayDevice device;
  const Trace trace = one_request(20'000, 11);
  ReplayPolicy by_tokens = ours();
  by_tokens.scheduler.max_prefill_step_ms = 0;
  const ReplayResult result = replay(trace, by_tokens, device);
  const RequestOutcome& r = result.requests[0];
  EXPECT_EQ(r.arrived_s, 1);
  const wire::PlanRow chunks[] = {{{}, 0, 8192, 0, 0}, {{}, 8192, 8192, 0, 0}, {{}, 16'384, 3616, 0, 0}};
  double prompt = 0;
  for (const wire::PlanRow& chunk : chunks) prompt += device.cost.seconds({&chunk, 1});
  EXPECT_NEAR(r.ttft_s(), prompt, 1e-9);
  double decode = 0;
  for (std::int32_t i = 0; i < 10; ++i) {
    const wire::PlanRow row{{}, 20'000 + i, 1, 0, 0};
    decode += device.cost.seconds({&row, 1});
  }
  EXPECT_NEAR(r.ended_s - r.first_token_s, decode, 1e-9);
  EXPECT_NEAR(device.cost.alone_s(20'000, 11, 8192), prompt + decode, 1e-6);
  EXPECT_EQ(result.steps, 3u + 10 + 1) << "one step is under way when the stop token is seen";
}

/// `long_prompts` of 32,000 tokens, one as soon as the other has ended, and forty prompts of ten tokens at
/// different times of each.
Trace short_ones_behind(std::uint32_t long_prompts) {
  constexpr double kApart_s = 1.2;
  Trace trace;
  const auto add = [&](double at_s, std::int32_t prompt, std::int32_t output) {
    trace.chats.emplace_back();
    trace.turns.push_back({.chat = static_cast<std::uint32_t>(trace.turns.size()),
                           .at_s = at_s,
                           .prompt_tokens = prompt,
                           .output_tokens = output});
  };
  for (std::uint32_t i = 0; i < long_prompts; ++i) {
    add(kApart_s * i, 32'000, 1);
    add(kApart_s * i + 0.02 + 0.55 * i / long_prompts, 10, 1);
  }
  return trace;
}

TEST(Replay, AShortPromptBehindALongOneWaitsForOneStepOfTheTimeBudget) {
  const Trace trace = short_ones_behind(40);
  const auto waits = [&](const ReplayPolicy& policy) {
    std::vector<double> ms;
    const ReplayResult result = replay(trace, policy, {});
    for (const RequestOutcome& r : result.requests) {
      if (r.prompt_tokens == 10) ms.push_back(1e3 * r.ttft_s());
    }
    std::ranges::sort(ms);
    return ms;
  };
  const std::vector<double> now = waits(ours());
  ASSERT_EQ(now.size(), 40u);
  EXPECT_LE(now[20], 60);
  EXPECT_LE(now.back(), 60 + 25) << "a step, and its own";
  ReplayPolicy by_tokens = ours();
  by_tokens.scheduler.max_prefill_step_ms = 0;
  EXPECT_GT(waits(by_tokens)[20], 150);
}

TEST(Replay, ALongPromptAloneTakesStepsOfTheTimeBudget) {
  const ReplayDevice device;
  Trace trace = one_request(32'000, 1);
  trace.chats.emplace_back();
  trace.turns.push_back({.chat = 1, .at_s = 5, .prompt_tokens = 32'000, .output_tokens = 1});
  const ReplayResult result = replay(trace, ours(), device);
  const double by_tokens = device.cost.alone_s(32'000, 1, 8192);
  EXPECT_LE(result.requests[1].ttft_s(), 1.2 * by_tokens) << "shorter steps are less efficient";
  EXPECT_LE(result.requests[0].ttft_s(), 1.3 * by_tokens) << "and nothing is known at first";
  EXPECT_GE(static_cast<double>(result.steps), result.busy_s / 0.066);
}

TEST(Replay, StepsFollowEachOtherWithoutAGap) {
  TraceOptions crowd = some_chats(300);
  crowd.rate = 1e6;
  crowd.mean_turns = 1;
  const ReplayResult result = replay(make_trace(crowd), ours(), {});
  EXPECT_NEAR(result.busy_s, result.end_s, 0.05) << "but for the last step of all";
}

TEST(Replay, AClosedLoopKeepsItsClientsBusy) {
  TraceOptions loop = some_chats(200);
  loop.clients = 8;
  const Trace trace = make_trace(loop);
  const ReplayResult result = replay(trace, ours(), {});
  for (std::size_t i = 0; i < trace.turns.size(); ++i) {
    EXPECT_EQ(result.requests[i].endings, 1);
    EXPECT_EQ(result.requests[i].output_tokens, trace.turns[i].output_tokens);
    if (i < 8) continue;
    EXPECT_EQ(result.requests[i].arrived_s, result.requests[i - 8].ended_s);
  }
}

TEST(Replay, ALaterTurnFindsTheEarlierOnes) {
  TraceOptions chats = some_chats(400);
  chats.documents = 0;
  const Trace trace = make_trace(chats);
  const ReplayResult result = replay(trace, ours(), {});
  for (std::size_t i = 1; i < trace.turns.size(); ++i) {
    if (trace.turns[i].opens_chat) continue;
    const TraceTurn& before = trace.turns[i - 1];
    EXPECT_GT(result.requests[i].cached_tokens, before.prompt_tokens + before.output_tokens - 2 * 64);
  }
  ReplayPolicy without = ours();
  without.caches = false;
  EXPECT_EQ(replay(trace, without, {}).cached_tokens, 0);
}

TEST(Replay, TheCostOfAStepIsAsMeasured) {
  const StepCost cost;
  // Steps of the 21B at 2,048 tokens of context, and prompts, in milliseconds: an H200 on 2026-11-22.
  for (const auto& [batch, ms] : {std::pair(1, 2.31),
                                  {2, 3.26},
                                  {4, 4.76},
                                  {8, 7.05},
                                  {16, 9.70},
                                  {32, 11.78},
                                  {64, 13.52},
                                  {128, 16.17},
                                  {256, 20.41},
                                  {512, 29.1}}) {
    const std::vector<wire::PlanRow> rows(static_cast<std::size_t>(batch), {{}, 2047, 1, 0, 0});
    EXPECT_NEAR(1e3 * cost.seconds(rows), ms, 0.05 * ms) << batch << " sequences";
  }
  for (const auto& [tokens, ms] : {std::pair(512, 15.6), {1024, 20.2}, {2048, 34.1}, {8192, 121.0}}) {
    const wire::PlanRow row{{}, 0, tokens, 0, 0};
    EXPECT_NEAR(1e3 * cost.seconds({&row, 1}), ms, 0.05 * ms) << tokens << " tokens";
  }
}

TEST(Replay, SummariesCountWhatTheySay) {
  const ReplayDevice device;
  Trace trace = one_request(100, 11);
  trace.turns.push_back(trace.turns[0]);
  trace.turns.push_back(trace.turns[0]);
  ReplayResult result;
  result.requests = {{1, 1.2, 1.4, 100, 11, 0, 1, false},   // 200 ms, then 20 ms a token: good
                     {1, 1.6, 1.8, 100, 11, 0, 1, false},   // 600 ms
                     {1, 1.2, 1.7, 100, 11, 0, 1, false}};  // 50 ms a token
  result.end_s = 1.8;
  const ReplaySummary s = summarise(trace, result, device);
  EXPECT_NEAR(s.good_share, 1.0 / 3, 1e-9);
  EXPECT_NEAR(s.goodput, 1.0, 1e-9) << "one in the second until the last chat was opened";
  EXPECT_NEAR(s.ttft_p50, 200, 1e-6);
  EXPECT_NEAR(s.tpot_p50, 20, 1e-6);
  EXPECT_NEAR(s.tokens_per_s, 33 / 1.8, 1e-9);
  const double x[] = {1 / 0.4, 1 / 0.8, 1 / 0.7};
  const double sum = x[0] + x[1] + x[2];
  EXPECT_NEAR(s.fairness, sum * sum / (3 * (x[0] * x[0] + x[1] * x[1] + x[2] * x[2])), 1e-9);
}

}  // namespace
}  // namespace troupe::bench
