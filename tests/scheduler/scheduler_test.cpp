// Single rules of the scheduler, each with numbers computed by hand. Random mixtures are in
// property_test.cpp.
#include "actors/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/rig.h"
#include "tests/scheduler/simulation.h"

namespace troupe::test {
namespace {

TEST(Scheduler, TheFirstPlanHoldsEverythingTheWorkerNeeds) {
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
  EXPECT_EQ(rig.view.array(blocks[0].blocks).size(), 2u);  // for 6 positions and the next one, in blocks of 4
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
  EXPECT_EQ(rig.rows()[0].position, 6);  // of the token that step 1 samples
  EXPECT_EQ(rig.rows()[0].tokens, 1);
  EXPECT_EQ(rig.header().started.count + rig.header().tokens.count, 0u);
  EXPECT_FALSE(rig.plan()) << "two are out";
  rig.commit(5);
  EXPECT_TRUE(rig.plan());
}

TEST(Scheduler, AnEndByLengthIsKnownWhilePlanning) {
  Rig rig;
  rig.add(1, 6, 2);
  ASSERT_TRUE(rig.plan());
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  EXPECT_FALSE(rig.plan()) << "steps for both tokens are planned already";
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

  // The next plan tells the worker; it gives the slot a new generation.
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
  EXPECT_EQ(rig.rows()[1].flags, 0u) << "the prompt is not finished";
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

/// Requests of one sequence, which may be one that is to be handed over.
void submit(Rig& rig, std::uint64_t key, std::int32_t prompt, bool hands_over) {
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, key};
  spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
  spec.prompt_tokens = prompt;
  spec.max_output_tokens = hands_over ? 1 : 10;
  request.hands_over = hands_over;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
}

std::int32_t step_tokens(const Rig& rig) {
  std::int32_t all = 0;
  for (const wire::PlanRow& row : rig.rows()) all += row.tokens;
  return all;
}

TEST(Scheduler, StepsAreShortWhileAPromptIsComputedThatIsHandedOver) {
  Rig rig({.blocks = 8000, .budget = 8192, .max_length = 16384});
  submit(rig, 1, 6000, false);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(step_tokens(rig), 6000) << "a prompt of its own takes what the step has";
  rig.commit(5);
  submit(rig, 2, 5000, true);
  submit(rig, 3, 3000, false);
  std::vector<std::int32_t> handed_over;
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(rig.plan());
    std::int32_t prompts = 0;
    bool of_two = false;
    for (const wire::PlanRow& row : rig.rows()) {
      if (row.tokens == 1) continue;
      prompts += row.tokens;
      of_two |= row.slot.slot == 1;
    }
    EXPECT_LE(prompts, of_two ? kHandOverTokens : 8192);
    if (of_two) handed_over.push_back(prompts);
    rig.commit(5);
    if (prompts == 0) break;
  }
  EXPECT_GE(handed_over.size(), 3u) << "5,000 tokens are three chunks or more";
}

TEST(Scheduler, StepStatsCountWhatWasRun) {
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
  EXPECT_FALSE(rig.error_of(rig.events()[0].key).empty());
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
    EXPECT_EQ(event.finish, Finish::aborted);
    EXPECT_EQ(rig.error_of(event.key), "Gone.");
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_FALSE(rig.plan());
  rig.attach(2);
  rig.add(3, 6, 40);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.header().step, 1u);
  EXPECT_EQ(rig.header().header.epoch, 2u);
}

TEST(Scheduler, ARequeuedSequenceIsRecomputedFromAllItsTokensAndFailsWhenItIsTheOnlySuspectThrice) {
  Rig rig;
  rig.add(1, 6, 40);
  rig.plan();
  rig.commit(5);
  rig.plan();
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
  EXPECT_TRUE(rig.events().empty()) << "it had yielded a token before the first loss";
  rig.attach(3);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  rig.scheduler.detach(Orphans::requeue, "And again.", rig.out);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].finish, Finish::poisoned);
  EXPECT_FALSE(rig.error_of(rig.events()[0].key).empty());
}

TEST(Scheduler, ChoicesComputeTheirPromptOnce) {
  Simulation sim({.blocks = 60, .slots = 4, .budget = 32}, 1);
  ASSERT_TRUE(sim.submit(sim.spec(22, 12), 4));
  ASSERT_TRUE(sim.drain(1000));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(sim.clients().finished, 4);
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
  EXPECT_EQ(sim.clients().scores, 3 * 9);
}

TEST(Scheduler, WhenBlocksRunOutTheYoungestSequenceIsPreempted) {
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

TEST(Scheduler, SmallRequestsOvertakeALargePromptForALimitedTime) {
  Simulation sim({.blocks = 40, .block_tokens = 4, .slots = 8, .budget = 32, .max_length = 150}, 1);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(sim.submit(sim.spec(8, 10)));
  for (int i = 0; i < 4; ++i) sim.turn();
  ASSERT_TRUE(sim.submit(sim.spec(140, 4)));  // 36 of 40 blocks
  const RequestKey large = sim.last_keys[0];
  int overtakers = 0;
  for (int i = 0; i < 3000 && sim.is_open(large); ++i) {
    const std::int64_t before = sim.clients().finished;
    if (sim.scheduler().waiting() < 12) sim.submit(sim.spec(8, 10));
    sim.turn();
    overtakers += static_cast<int>(sim.clients().finished - before);
  }
  EXPECT_FALSE(sim.is_open(large)) << "it starved";
  EXPECT_GE(overtakers, 6) << "no request overtook it";
  EXPECT_LE(overtakers, 6 + Scheduler::kMaxPassedOver + 8);
  EXPECT_EQ(sim.complaint, "");
}

}  // namespace
}  // namespace troupe::test
