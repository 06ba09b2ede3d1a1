// Single rules of the scheduler, each against hand-made numbers. Random mixtures are in property_test.cpp.
#include "actors/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/scheduler/simulation.h"

namespace troupe::test {
namespace {

/// Scheduler and cache manager with nothing between them, and plans in the hand.
struct Rig {
  explicit Rig(Setting s = {}, config::SchedulerOptions options = {}) : scheduler(options) {
    wire::Capacity c;
    c.kv_blocks = s.blocks;
    c.block_tokens = s.block_tokens;
    c.max_slots = s.slots;
    c.max_tokens_per_step = s.budget;
    c.max_model_len = s.max_length;
    c.vocab_size = s.vocab;
    c.max_steps_in_flight = s.in_flight;
    capacity = c;
    attach(1);
  }

  void attach(std::uint32_t e) {
    epoch = e;
    done = 0;
    steps.clear();
    cache.reset(e, capacity.kv_blocks, capacity.block_tokens);
    scheduler.attach(e, capacity, out);
  }
  Status submit(std::uint64_t key, std::int32_t prompt, std::int32_t max_output, std::uint64_t parent = 0) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, key};
    if (parent != 0) spec.parent = {1, parent};
    spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
    spec.prompt_tokens = prompt;
    spec.max_output_tokens = max_output;
    spec.stop_ids = {kStop};
    const Status status = scheduler.submit(request);
    exchange();
    return status;
  }
  void add(std::uint64_t key, std::int32_t prompt, std::int32_t max_output) {
    EXPECT_TRUE(submit(key, prompt, max_output).ok());
  }
  void exchange() {
    CacheAsks asks;
    CacheGrants grants;
    while (scheduler.take_asks(asks)) {
      cache.answer(asks, grants);
      scheduler.granted(grants);
    }
  }

  /// The next plan; its rows are valid until the next call. False when there is none.
  bool plan() {
    const std::span<const std::byte> bytes = scheduler.plan(++now);
    exchange();
    if (bytes.empty()) return false;
    record.assign(bytes.begin(), bytes.end());
    EXPECT_TRUE(wire::View::open(record, view));
    steps.push_back({rows().begin(), rows().end()});
    return true;
  }
  const wire::StepPlan& header() const { return *view.as<wire::StepPlan>(); }
  std::span<const wire::Row> rows() const { return view.array(header().rows); }

  /// Answers the oldest plan, `token` for every row that samples.
  std::vector<std::byte> result(TokenId token, wire::RowError error = wire::RowError::none) {
    std::vector<wire::ResultRow> rows;
    std::vector<TokenId> tokens;
    for (const wire::Row& row : steps.front()) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1,
                      rows.empty() ? error : wire::RowError::none, 0});
      tokens.push_back(token);
    }
    wire::Writer<wire::StepResult> writer;
    writer.begin(epoch);
    const auto row_span = writer.array(rows);
    const auto token_span = writer.array(tokens);
    writer.record().step = ++done;
    writer.record().rows = row_span;
    writer.record().tokens = token_span;
    writer.record().started_ns = 1'000'000;
    writer.record().finished_ns = 3'000'000;
    steps.erase(steps.begin());
    const std::span<const std::byte> bytes = writer.finish();
    return {bytes.begin(), bytes.end()};
  }
  void commit(TokenId token, wire::RowError error = wire::RowError::none) {
    ASSERT_EQ(scheduler.commit(result(token, error), out), Committed::applied);
    exchange();
  }
  std::vector<SequenceTokens> events() const {
    std::vector<SequenceTokens> all;
    for (const StepTokens& host : out.hosts)
      all.insert(all.end(), host.sequences.begin(), host.sequences.end());
    return all;
  }

  static constexpr TokenId kStop = 9;
  Scheduler scheduler;
  CacheManager cache;
  wire::Capacity capacity;
  StepOutput out;
  std::vector<std::byte> record;
  wire::View view;
  std::vector<std::vector<wire::Row>> steps;
  std::uint32_t epoch = 0;
  std::uint64_t done = 0;
  std::int64_t now = 0;
};

TEST(Scheduler, TheFirstPlanBringsAllTheWorkerHasToKnow) {
  Rig rig({.blocks = 20, .block_tokens = 4, .budget = 16});
  ASSERT_TRUE(rig.submit(1, 6, 4).ok());
  ASSERT_TRUE(rig.plan());
  const wire::StepPlan& plan = rig.header();
  EXPECT_EQ(plan.step, 1u);
  EXPECT_EQ(plan.after_cache_command, 0u);
  const auto started = rig.view.array(plan.started);
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].key, (RequestKey{1, 1}));
  EXPECT_EQ(started[0].prompt_tokens, 6);
  EXPECT_EQ(started[0].known_tokens, 6);
  EXPECT_EQ(rig.view.array(started[0].stop_ids).size(), 1u);
  const auto runs = rig.view.array(plan.tokens);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(rig.view.array(runs[0].ids).size(), 6u);
  const auto blocks = rig.view.array(plan.blocks);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(rig.view.array(blocks[0].blocks).size(), 2u);  // 6 positions and the next, in blocks of 4
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].position, 0);
  EXPECT_EQ(rig.rows()[0].tokens, 6);
  EXPECT_EQ(rig.rows()[0].flags, wire::kSamples);
}

TEST(Scheduler, PlansTheNextStepBeforeTheResultOfThisOne) {
  Rig rig;
  rig.add(1, 6, 10);
  ASSERT_TRUE(rig.plan());
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].position, 6);  // the token that the slot samples in step 1
  EXPECT_EQ(rig.rows()[0].tokens, 1);
  EXPECT_EQ(rig.header().started.count + rig.header().tokens.count, 0u);
  EXPECT_FALSE(rig.plan()) << "two are out";
  rig.commit(5);
  EXPECT_TRUE(rig.plan());
}

TEST(Scheduler, AnEndByLengthIsForeseen) {
  Rig rig;
  rig.add(1, 6, 2);
  ASSERT_TRUE(rig.plan());
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  EXPECT_FALSE(rig.plan()) << "both tokens are on their way";
  rig.commit(6);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].finish, Finish::length);
  EXPECT_EQ(rig.scheduler.totals().discarded_tokens, 0u);
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.cache.status().free, rig.cache.status().total);
}

TEST(Scheduler, AStopIdIsSeenOneStepLateAndItsExtraTokenDiscarded) {
  Rig rig;
  rig.add(1, 6, 10);
  rig.plan();
  rig.plan();
  rig.commit(Rig::kStop);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].finish, Finish::stop);
  EXPECT_EQ(rig.events()[0].tokens, 1);
  EXPECT_LT(rig.cache.status().free, rig.cache.status().total) << "a plan in flight still writes its blocks";
  rig.commit(5);
  EXPECT_TRUE(rig.events().empty());
  EXPECT_EQ(rig.scheduler.totals().discarded_tokens, 1u);
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.cache.status().free, rig.cache.status().total);

  // The worker hears of it with the next plan, which gives the slot a new generation.
  rig.add(2, 3, 3);
  ASSERT_TRUE(rig.plan());
  const auto finished = rig.view.array(rig.header().finished);
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0], (SlotRef{0, 1}));
  EXPECT_EQ(rig.view.array(rig.header().started)[0].slot, (SlotRef{0, 2}));
}

TEST(Scheduler, DecodesComeFirstAndPromptsShareWhatIsLeft) {
  Rig rig({.blocks = 60, .budget = 10});
  rig.add(1, 3, 20);
  rig.plan();
  rig.add(2, 30, 5);
  rig.plan();
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[0].position, 3);
  EXPECT_EQ(rig.rows()[0].tokens, 1);
  EXPECT_EQ(rig.rows()[1].position, 0);
  EXPECT_EQ(rig.rows()[1].tokens, 9);
  EXPECT_EQ(rig.rows()[1].flags, 0u) << "the prompt is not through yet";
  rig.commit(5);
  rig.plan();
  EXPECT_EQ(rig.rows()[1].position, 9);
  rig.commit(5);
  rig.plan();
  rig.commit(5);
  rig.plan();
  EXPECT_EQ(rig.rows()[1].position, 27);
  EXPECT_EQ(rig.rows()[1].tokens, 3);
  EXPECT_EQ(rig.rows()[1].flags, wire::kSamples);
}

TEST(Scheduler, StepStatsSayWhatWasRun) {
  Rig rig;
  rig.add(1, 6, 10);
  rig.plan();
  rig.commit(5);
  EXPECT_EQ(rig.out.stats.prompt_tokens, 6);
  EXPECT_EQ(rig.out.stats.generated_tokens, 1);
  EXPECT_EQ(rig.out.stats.running, 1);
  EXPECT_NEAR(rig.out.stats.step_s, 0.002, 1e-9);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].scheduled_ns, 1);
}

TEST(Scheduler, ARowErrorEndsItsSequenceOnly) {
  Rig rig;
  rig.add(1, 3, 10);
  rig.add(2, 3, 10);
  rig.plan();
  rig.commit(5, wire::RowError::not_finite);
  ASSERT_EQ(rig.events().size(), 2u);
  EXPECT_EQ(rig.events()[0].finish, Finish::error);
  EXPECT_FALSE(rig.events()[0].error.empty());
  EXPECT_EQ(rig.events()[0].tokens, 0);
  EXPECT_EQ(rig.events()[1].finish, Finish::none);
  EXPECT_EQ(rig.scheduler.running(), 1);
}

TEST(Scheduler, CancelFreesEverythingWhenThePlansInFlightAreBack) {
  Rig rig;
  rig.add(1, 6, 40);
  rig.add(2, 6, 40);
  rig.plan();
  rig.plan();
  rig.scheduler.cancel({1, 1});
  rig.scheduler.cancel({1, 1});
  rig.scheduler.cancel({1, 77});
  rig.exchange();
  for (int i = 0; i < 2; ++i) {
    rig.commit(5);
    ASSERT_EQ(rig.events().size(), 1u);
    EXPECT_EQ(rig.events()[0].key, (RequestKey{1, 2}));
  }
  EXPECT_TRUE(rig.cache.table({1, 1}).empty());
  EXPECT_EQ(rig.cache.leases(), 1u);
}

TEST(Scheduler, RefusesWhatCanNeverRunAndSaysWhy) {
  Rig rig({.blocks = 10, .block_tokens = 4, .max_length = 60, .vocab = 50});
  const Status too_long = rig.submit(1, 40, 5);
  EXPECT_EQ(too_long.code, Code::invalid_argument);
  EXPECT_EQ(too_long.reason, "context_length_exceeded");
  EXPECT_NE(too_long.message.find("40"), std::string::npos);
  EXPECT_TRUE(rig.submit(1, 39, 5).ok()) << "one token of room is enough; the rest is clipped";
  EXPECT_EQ(rig.submit(1, 3, 5).param, "key");
  EXPECT_EQ(rig.submit(2, 0, 5).param, "prompt");
  EXPECT_EQ(rig.submit(2, 3, 0).param, "max_tokens");
  EXPECT_EQ(rig.submit(3, 3, 5, 2).param, "parent");
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 5};
  spec.prompt = {50};
  spec.prompt_tokens = spec.max_output_tokens = 1;
  EXPECT_EQ(rig.scheduler.submit(request).param, "prompt");
  spec.prompt = {49};
  spec.logit_bias.assign(40'000, {1, 0.5f});
  EXPECT_EQ(rig.scheduler.submit(request).param, "logit_bias");
}

TEST(Scheduler, BoundsItsQueueInRequestsAndInTokens) {
  config::SchedulerOptions options;
  options.max_num_seqs = 1;
  options.max_queued_requests = 3;
  options.max_queued_tokens = 50;
  Rig rig({.blocks = 100}, options);
  ASSERT_TRUE(rig.submit(1, 5, 50).ok());
  for (std::uint64_t k : {2, 3, 4}) ASSERT_TRUE(rig.submit(k, 5, 5).ok());
  const Status full = rig.submit(5, 5, 5);
  EXPECT_EQ(full.code, Code::overloaded);
  rig.scheduler.cancel({1, 4});
  EXPECT_EQ(rig.submit(6, 45, 5).code, Code::overloaded);
  EXPECT_TRUE(rig.submit(7, 40, 5).ok());
  EXPECT_EQ(rig.scheduler.waiting(), 3);
}

TEST(Scheduler, ALargeRequestIsTakenWhenNothingWaits) {
  config::SchedulerOptions options;
  options.max_queued_tokens = 10;
  Rig rig({.blocks = 100}, options);
  EXPECT_TRUE(rig.submit(1, 40, 5).ok());
}

TEST(Scheduler, TakesNothingWithoutAWorker) {
  Scheduler scheduler({});
  Submit request;
  EXPECT_EQ(scheduler.submit(request).code, Code::unavailable);
}

TEST(Scheduler, ASubmitIsTakenWholeOrNotAtAll) {
  Rig rig;
  Submit request;
  for (std::uint64_t k : {1, 2}) {
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, k};
    spec.prompt = {1};
    spec.prompt_tokens = 1;
    spec.max_output_tokens = k == 1 ? 5 : 0;
  }
  EXPECT_FALSE(rig.scheduler.submit(request).ok());
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(Scheduler, DropsStaleAndMalformedResults) {
  Rig rig;
  rig.add(1, 6, 40);
  rig.plan();
  rig.plan();
  std::vector<std::byte> first = rig.result(5);
  rig.scheduler.commit(first, rig.out);
  EXPECT_EQ(rig.scheduler.commit(first, rig.out), Committed::stale);
  const std::vector<std::byte> good = rig.result(6);
  std::vector<std::byte> bad = good;
  reinterpret_cast<wire::StepResult*>(bad.data())->header.epoch = 7;
  EXPECT_EQ(rig.scheduler.commit(bad, rig.out), Committed::stale);
  bad = good;
  reinterpret_cast<wire::ResultRow*>(bad.data() + sizeof(wire::StepResult))->slot.generation += 1;
  EXPECT_EQ(rig.scheduler.commit(bad, rig.out), Committed::malformed);
  bad = good;
  reinterpret_cast<wire::ResultRow*>(bad.data() + sizeof(wire::StepResult))->first = 1;
  EXPECT_EQ(rig.scheduler.commit(bad, rig.out), Committed::malformed);
  bad.resize(20);
  EXPECT_EQ(rig.scheduler.commit(bad, rig.out), Committed::malformed);
  EXPECT_TRUE(rig.events().empty());
  EXPECT_EQ(rig.scheduler.commit(good, rig.out), Committed::applied);
  EXPECT_EQ(rig.scheduler.totals().stale_results, 2u);
  EXPECT_EQ(rig.scheduler.totals().malformed_results, 3u);
}

TEST(Scheduler, ALostWorkerFailsEverything) {
  Rig rig;
  rig.add(1, 6, 40);
  rig.plan();
  rig.plan();
  rig.add(2, 6, 40);
  rig.scheduler.detach(Orphans::fail, "Gone.", rig.out);
  ASSERT_EQ(rig.events().size(), 2u);
  for (const SequenceTokens& event : rig.events()) {
    EXPECT_EQ(event.finish, Finish::error);
    EXPECT_EQ(event.error, "Gone.");
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_FALSE(rig.plan());
  rig.attach(2);
  rig.add(3, 6, 40);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.header().step, 1u);
  EXPECT_EQ(rig.header().header.epoch, 2u);
}

TEST(Scheduler, ARequeuedSequenceIsRecomputedFromAllItsTokensButNotForEver) {
  Rig rig;
  rig.add(1, 6, 40);
  rig.plan();
  rig.commit(5);
  rig.scheduler.detach(Orphans::requeue, "Gone.", rig.out);
  EXPECT_TRUE(rig.events().empty());
  rig.attach(2);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  const wire::StartSequence& start = rig.view.array(rig.header().started)[0];
  EXPECT_EQ(start.prompt_tokens, 6);
  EXPECT_EQ(start.known_tokens, 7);
  EXPECT_EQ(rig.rows()[0].tokens, 7);
  rig.scheduler.detach(Orphans::requeue, "Gone again.", rig.out);
  ASSERT_EQ(rig.events().size(), 1u) << "it was running at two losses";
  EXPECT_EQ(rig.events()[0].error, "Gone again.");
}

TEST(Scheduler, ChoicesComputeTheirPromptOnce) {
  Simulation sim({.blocks = 60, .slots = 4, .budget = 32}, 1);
  ASSERT_TRUE(sim.submit(sim.spec(22, 12), 4));
  ASSERT_TRUE(sim.drain(1000));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(sim.finished, 4);
  EXPECT_EQ(sim.worker().forked_rows(), 3);
}

TEST(Scheduler, ChoicesForkEvenWhenTheFirstEndsWithItsPrompt) {
  Simulation sim({.blocks = 60, .slots = 4, .budget = 32}, 1);
  ASSERT_TRUE(sim.submit(sim.spec(22, 1), 4));
  ASSERT_TRUE(sim.drain(1000));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(sim.worker().forked_rows(), 3);
}

TEST(Scheduler, ChoicesThatWantPromptLogprobsRunTheirPromptsThemselves) {
  Simulation sim({.blocks = 60, .slots = 4, .budget = 32}, 1);
  SequenceSpec spec = sim.spec(10, 2);
  spec.sampling.prompt_logprobs = 0;
  ASSERT_TRUE(sim.submit(spec, 3));
  ASSERT_TRUE(sim.drain(1000));
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(sim.worker().forked_rows(), 0);
  EXPECT_EQ(sim.scores, 3 * 9);
}

TEST(Scheduler, WhenBlocksRunOutTheYoungestGivesWay) {
  Simulation sim({.blocks = 12, .block_tokens = 4, .slots = 3, .budget = 16, .max_length = 60}, 1);
  std::vector<RequestKey> keys;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sim.submit(sim.spec(4, 36)));
    keys.push_back(sim.last_keys[0]);
  }
  std::vector<RequestKey> order;
  for (int i = 0; i < 2000 && sim.open() > 0; ++i) {
    sim.turn();
    for (const RequestKey& key : keys) {
      if (!sim.is_open(key) && std::find(order.begin(), order.end(), key) == order.end())
        order.push_back(key);
    }
  }
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(order, keys) << "equal work ends in order of submission";
  EXPECT_GT(sim.scheduler().totals().preempted, 0u);
  ASSERT_TRUE(sim.drain(100));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
}

TEST(Scheduler, ALargePromptIsOvertakenButNotForEver) {
  Simulation sim({.blocks = 40, .block_tokens = 4, .slots = 8, .budget = 32, .max_length = 150}, 1);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(sim.submit(sim.spec(8, 10)));
  for (int i = 0; i < 4; ++i) sim.turn();
  ASSERT_TRUE(sim.submit(sim.spec(140, 4)));  // 36 of 40 blocks
  const RequestKey large = sim.last_keys[0];
  int overtakers = 0;
  for (int i = 0; i < 3000 && sim.is_open(large); ++i) {
    const std::int64_t before = sim.finished;
    if (sim.scheduler().waiting() < 12) sim.submit(sim.spec(8, 10));
    sim.turn();
    overtakers += static_cast<int>(sim.finished - before);
  }
  EXPECT_FALSE(sim.is_open(large)) << "it starved";
  EXPECT_GE(overtakers, 6) << "nobody was let ahead of it";
  EXPECT_LE(overtakers, 6 + Scheduler::kMaxPassedOver + 8);
  EXPECT_EQ(sim.complaint, "");
}

TEST(Scheduler, PromptLogprobsNeverAskForMoreThanOneResultHolds) {
  constexpr std::int32_t kTokens = 30'000;
  Rig rig({.blocks = 4000,
           .block_tokens = 64,
           .slots = 4,
           .budget = 65'536,
           .max_length = 40'000,
           .in_flight = 1});
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 1};
  spec.prompt.assign(kTokens, 3);
  spec.prompt_tokens = kTokens;
  spec.max_output_tokens = 1;
  spec.sampling.prompt_logprobs = spec.sampling.logprobs = 20;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
  constexpr std::size_t kScore = sizeof(wire::TokenLogprobs) + 20 * sizeof(wire::Logprob);
  std::int32_t run = 0;
  for (int i = 0; i < 20 && rig.plan(); ++i) {
    ASSERT_EQ(rig.rows().size(), 1u);
    const std::int32_t tokens = rig.rows()[0].tokens;
    EXPECT_LE(static_cast<std::size_t>(tokens) * kScore + sizeof(wire::StepResult), wire::kMaxRecordBytes);
    run += tokens;
    rig.commit(5);
  }
  EXPECT_EQ(run, kTokens);
}

TEST(Scheduler, RefusesSamplingThatTheWorkerWouldRefuse) {
  Rig rig;
  const auto refused = [&](auto&& change) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, 1};
    spec.prompt = {1};
    spec.prompt_tokens = spec.max_output_tokens = 1;
    change(spec);
    return rig.scheduler.submit(request).param;
  };
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.top_p = 0; }), "top_p");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.temperature = NAN; }), "temperature");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.sampling.logprobs = 21; }), "logprobs");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.stop_ids = {50}; }), "stop_token_ids");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.logit_bias = {{50, 1}}; }), "logit_bias");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.logit_bias = {{1, INFINITY}}; }), "logit_bias");
  EXPECT_EQ(refused([](SequenceSpec&) {}), "");
}

TEST(Scheduler, PromptsLongerThanAPlanAreSplitAndEveryPlanFitsARecord) {
  constexpr std::int32_t kLong = 200'000;
  Rig rig({.blocks = 4000,
           .block_tokens = 64,
           .slots = 4,
           .budget = 1 << 20,
           .max_length = 250'000,
           .in_flight = 1});
  for (std::uint64_t k : {1, 2, 3}) ASSERT_TRUE(rig.submit(k, kLong, 1).ok());
  std::int64_t ids = 0, positions = 0;
  for (int i = 0; i < 20 && rig.plan(); ++i) {
    EXPECT_LE(rig.record.size(), wire::kMaxRecordBytes);
    for (const wire::TokenRun& run : rig.view.array(rig.header().tokens)) ids += run.ids.count;
    for (const wire::Row& row : rig.rows()) positions += row.tokens;
    rig.commit(5);
  }
  EXPECT_EQ(ids, 3 * kLong);
  EXPECT_EQ(positions, 3 * kLong);
  EXPECT_TRUE(rig.scheduler.idle());
}

}  // namespace
}  // namespace troupe::test
