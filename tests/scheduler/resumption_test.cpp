// Engines that die: sequences are submitted again with the tokens that their front has, and go on behind
// them.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"
#include "tests/scheduler/simulation.h"

namespace troupe::test {
namespace {

/// A sequence that has yielded `output` in an engine that has died.
SequenceSpec resumed(std::uint64_t key, std::int32_t prompt, std::vector<TokenId> output,
                     std::int32_t max_output = 20) {
  SequenceSpec spec;
  spec.key = {1, key};
  spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
  spec.prompt_tokens = prompt;
  spec.max_output_tokens = max_output;
  spec.stop_ids = {Rig::kStop};
  spec.output = std::move(output);
  return spec;
}

Submit again(std::vector<SequenceSpec> sequences, std::int64_t arrived_ns = 1, std::uint32_t attempt = 1) {
  Submit request;
  request.sequences = std::move(sequences);
  request.arrived_ns = arrived_ns;
  request.attempt = attempt;
  return request;
}

Status submit(Rig& rig, Submit request, std::uint32_t front = 0) {
  const Status status = rig.scheduler.submit(request, front);
  rig.exchange();
  return status;
}

/// Keys in the order in which a scheduler with one slot computes them; each ends with its next token.
std::vector<std::uint64_t> order_of_ends(Rig& rig) {
  std::vector<std::uint64_t> order;
  while (rig.plan()) {
    rig.commit(Rig::kStop);
    for (const SequenceTokens& event : rig.events()) order.push_back(event.key.lo);
  }
  return order;
}

config::SchedulerOptions one_sequence() {
  config::SchedulerOptions options;
  options.max_num_seqs = 1;
  return options;
}

// --------------------------------------------------------------------------- texts

struct Workload {
  const char* name;
  Setting setting;
};

class EngineDeaths : public ::testing::TestWithParam<Workload> {};

/// The simulation compares every token, score, position and finish with those of a run without deaths.
TEST_P(EngineDeaths, EveryTextIsAsUndisturbed) {
  int deaths = 0;
  std::int64_t finished = 0, scores = 0, forks = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Setting& setting = GetParam().setting;
    Simulation sim(setting, seed);
    sim.fronts = 1 + seed % 2;
    std::int64_t sequences = 0;
    for (int i = 0; i < 14; ++i) {
      SequenceSpec spec = sim.spec(1 + sim.below(30), 1 + sim.below(28));
      for (int n = sim.below(3); n > 0; --n) spec.stop_ids.push_back(sim.below(setting.vocab));
      if (sim.chance(0.3)) spec.sampling.logprobs = 2;
      if (sim.chance(0.3)) spec.sampling.prompt_logprobs = 0;
      if (setting.grammars && sim.chance(0.7)) {
        spec.grammar = 1 + static_cast<std::uint64_t>(sim.below(3));
        spec.gated_from = sim.below(6);
      }
      sim.prefix.enabled = !sim.chance(0.1);
      const int choices = sim.chance(0.4) ? 2 + sim.below(4) : 1;
      ASSERT_TRUE(sim.submit(spec, choices));
      sequences += choices;
      for (int turns = sim.below(6); turns > 0; --turns) sim.turn();
    }
    for (int death = 0; death < 4 && sim.open() > 0; ++death) {
      for (int turns = sim.below(25); turns > 0; --turns) sim.turn();
      sim.lose_engine(0.2);
      forks += sim.worker().forked_rows();
    }
    ASSERT_TRUE(sim.drain(20'000)) << "seed " << seed;
    sim.check_idle();
    ASSERT_EQ(sim.complaint, "") << "seed " << seed;
    EXPECT_EQ(sim.clients().finished, sequences);
    EXPECT_EQ(sim.clients().failed, 0);
    deaths += sim.engine_deaths;
    finished += sim.clients().finished;
    scores += sim.clients().scores;
    forks += sim.worker().forked_rows();
  }
  EXPECT_GT(deaths, 100);
  EXPECT_GT(finished, 800);
  EXPECT_GT(scores, 1000);
  EXPECT_GT(forks, 20);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EngineDeaths,
    ::testing::Values(Workload{"roomy", {.blocks = 200}},
                      Workload{"no_prefix_cache", {.blocks = 100, .caching = {false, false, {}}}},
                      Workload{"prompts_only", {.blocks = 100, .caching = {true, false, {1, 2}}}},
                      Workload{"preempting", {.blocks = 20, .slots = 6, .budget = 16}},
                      Workload{"swapping", {.blocks = 20, .swap_blocks = 40}},
                      Workload{"reserving", {.blocks = 40, .preempts = false, .ratio = 0.5}},
                      Workload{"grammars", {.blocks = 60, .grammars = true}},
                      Workload{"late_masks", {.blocks = 60, .in_flight = 3, .grammars = true, .late = 0.2}},
                      Workload{"few_ids_a_plan",
                               {.blocks = 60, .block_tokens = 8, .budget = 64, .max_ids = 11}}),
    [](const auto& info) { return info.param.name; });

TEST(Resumption, TheWorkerIsToldWhereThePromptEndsAndAllTokens) {
  Rig rig;
  ASSERT_TRUE(submit(rig, again({resumed(1, 6, {21, 22})})).ok());
  ASSERT_TRUE(rig.plan());
  const wire::StartSequence& start = rig.view.array(rig.header().started)[0];
  EXPECT_EQ(start.prompt_tokens, 6);
  EXPECT_EQ(start.known_tokens, 8);
  const std::span<const wire::TokenRun> runs = rig.view.array(rig.header().tokens);
  std::vector<TokenId> ids;
  for (const wire::TokenRun& run : runs)
    ids.insert(ids.end(), rig.view.array(run.ids).begin(), rig.view.array(run.ids).end());
  EXPECT_EQ(ids, (std::vector<TokenId>{3, 3, 3, 3, 3, 3, 21, 22}));
  EXPECT_EQ(rig.rows()[0].tokens, 8);
}

TEST(Resumption, LengthsCountTheOutputThatIsThere) {
  Rig rig({.max_length = 10});
  ASSERT_TRUE(submit(rig, again({resumed(1, 3, {21, 22}, 4)})).ok());
  ASSERT_TRUE(submit(rig, again({resumed(2, 3, {21, 22, 23, 24, 25}, 50)})).ok());
  rig.plan();
  rig.plan();
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 2u);
  EXPECT_EQ(rig.events()[0].finish, Finish::none);
  EXPECT_EQ(rig.events()[1].finish, Finish::none);
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 2u);
  EXPECT_EQ(rig.events()[0].finish, Finish::length) << "max_tokens";
  EXPECT_EQ(rig.events()[1].finish, Finish::length) << "the model's length";
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(Resumption, TheLastChoicesOfAPromptShareIt) {
  Rig rig({.blocks = 200, .budget = 64});
  SequenceSpec second = resumed(3, 9, {24}), third = resumed(4, 9, {});
  for (SequenceSpec* spec : {&second, &third}) {
    spec->parent = {1, 2};  // the first of the prompt has ended
    spec->prompt.clear();
  }
  ASSERT_TRUE(submit(rig, again({resumed(2, 9, {21, 22, 23}), second, third})).ok());
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].tokens, 12);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  std::vector<std::int32_t> run;
  for (const wire::PlanRow& row : rig.rows()) run.push_back(row.tokens);
  EXPECT_EQ(run, (std::vector<std::int32_t>{1, 1, 2})) << "each begins at the prompt's last token";
}

TEST(Resumption, ScoredPromptPositionsAreFoundInTheCacheAndNotReportedAgain) {
  for (const std::int32_t scored : {0, 5, 12}) {
    Rig rig({.blocks = 100, .block_tokens = 4, .budget = 64}, {}, kCachesAll);
    rig.add(1, 12, 4);
    rig.plan();
    rig.commit(Rig::kStop);
    SequenceSpec spec = resumed(2, 12, {}, 4);
    spec.sampling.prompt_logprobs = 0;
    spec.scored = scored;
    ASSERT_TRUE(submit(rig, again({spec})).ok());
    ASSERT_TRUE(rig.plan());
    const std::int32_t begins = scored == 0 ? 0 : scored == 5 ? 4 : 8;
    EXPECT_EQ(rig.rows()[0].position, begins) << scored;
  }
}

TEST(Resumption, TotalsCountARequestOnce) {
  Rig rig({.blocks = 100, .block_tokens = 4, .budget = 64}, {}, kCachesAll);
  rig.add(1, 12, 9);
  rig.plan();
  rig.commit(5);
  EXPECT_EQ(rig.scheduler.totals().prompt_tokens, 12);
  ASSERT_TRUE(submit(rig, again({resumed(2, 12, {21})})).ok());
  rig.plan();
  rig.plan();
  rig.commit(5);
  EXPECT_EQ(rig.out.stats.admitted, 0);
  EXPECT_EQ(rig.out.stats.admitted_tokens, 0);
  EXPECT_EQ(rig.out.stats.cached_tokens, 0);
  rig.commit(5);
  EXPECT_EQ(rig.scheduler.totals().prompt_tokens, 12);
  EXPECT_EQ(rig.scheduler.totals().cached_tokens, 0);
}

TEST(Resumption, EveryEntryNamesAttemptAndPosition) {
  Rig rig({.blocks = 100, .budget = 64});
  SequenceSpec spec = resumed(1, 6, {21, 22});
  ASSERT_TRUE(submit(rig, again({spec}, 1, 3)).ok());
  rig.add(2, 6, 9);
  std::int32_t expected = 2;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(rig.plan());
    rig.commit(5);
    ASSERT_EQ(rig.events().size(), 2u);
    EXPECT_EQ(rig.events()[0].attempt, 3u);
    EXPECT_EQ(rig.events()[0].position, expected++);
    EXPECT_EQ(rig.events()[1].attempt, 0u);
    EXPECT_EQ(rig.events()[1].position, i);
  }
  rig.scheduler.detach(Orphans::fail, "Gone.", rig.out);  // entries with only a finish
  ASSERT_EQ(rig.events().size(), 2u);
  EXPECT_EQ(rig.events()[0].attempt, 3u);
  EXPECT_EQ(rig.events()[0].position, 5);
  EXPECT_EQ(rig.events()[1].position, 3);
}

TEST(Resumption, ImpossibleRequestsAreRefusedByName) {
  Rig rig({.max_length = 20, .vocab = 50});
  const auto refused = [&](auto&& change, std::uint32_t attempt = 1) {
    SequenceSpec spec = resumed(1, 6, {21, 22}, 5);
    change(spec);
    return submit(rig, again({spec}, 1, attempt));
  };
  EXPECT_EQ(refused([](SequenceSpec&) {}, 0).message,
            "output has 2 tokens; at the first attempt it must be empty.");
  EXPECT_EQ(refused([](SequenceSpec& s) {
              s.output = {21, 50};
            }).message,
            "output holds token 50; ids are 0 to 49.");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.output = {21, -1}; }).param, "output");
  EXPECT_EQ(refused([](SequenceSpec& s) {
              s.output = {21, Rig::kStop};
            }).message,
            "output holds token 9, a stop id: the sequence has ended.");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.output.assign(5, 21); }).message,
            "output has 5 tokens, but max_tokens is 5: the sequence has ended.");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.output.assign(14, 21), s.max_output_tokens = 90; }).reason,
            "context_length_exceeded");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.scored = 7; }).message,
            "scored is 7; it must be at least 0 and at most 6, the length of the prompt.");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.scored = -1; }).param, "scored");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.output.clear(), s.scored = 1; }, 0).param, "scored");
  EXPECT_EQ(refused([](SequenceSpec& s) { s.prompt_tokens = 4; }).message,
            "prompt_tokens is 4; it must be 6, the number of ids given.");
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_TRUE(refused([](SequenceSpec& s) { s.scored = 6; }).ok());
}

// --------------------------------------------------------------------------- queue

TEST(Resumption, ItsPlaceIsBeforeNewOnesByTheArrivalOfItsRequest) {
  Rig rig({.blocks = 200}, one_sequence());
  rig.add(1, 5, 9);  // runs
  rig.add(2, 5, 9);
  ASSERT_TRUE(submit(rig, again({resumed(30, 5, {21})}, 30)).ok());
  ASSERT_TRUE(submit(rig, again({resumed(10, 5, {21})}, 10, 2)).ok());
  ASSERT_TRUE(submit(rig, again({resumed(20, 5, {}), resumed(21, 5, {22})}, 20)).ok());
  rig.add(3, 5, 9);
  EXPECT_EQ(order_of_ends(rig), (std::vector<std::uint64_t>{1, 10, 20, 21, 30, 2, 3}));
}

TEST(Resumption, PrioritiesMoveItAsTheyMoveOthers) {
  Rig rig({.blocks = 200}, one_sequence());
  rig.add(1, 5, 9);  // runs
  Submit low = again({resumed(10, 5, {21})}, 10);
  low.priority = 1;
  ASSERT_TRUE(submit(rig, std::move(low)).ok());
  ASSERT_TRUE(submit(rig, again({resumed(20, 5, {21})}, 20)).ok());
  rig.add(2, 5, 9);
  EXPECT_EQ(order_of_ends(rig), (std::vector<std::uint64_t>{1, 20, 2, 10}));
}

TEST(Resumption, NoLimitOfTheQueueRefusesIt) {
  config::SchedulerOptions options = one_sequence();
  options.max_queued_requests = 2;
  options.max_queued_tokens = 20;
  Rig rig({.blocks = 200}, options);
  for (std::uint64_t k : {1, 2, 3}) rig.add(k, 5, 9);
  ASSERT_EQ(rig.submit(4, 5, 9).code, Code::overloaded);
  EXPECT_TRUE(submit(rig, again({resumed(5, 5, {21})})).ok());
  EXPECT_TRUE(submit(rig, again({resumed(6, 30, {21})})).ok()) << "more tokens than may wait at all";
  EXPECT_TRUE(submit(rig, again({resumed(7, 5, {}), resumed(8, 5, {}), resumed(9, 5, {})})).ok());
  EXPECT_EQ(rig.submit(10, 5, 9).code, Code::overloaded) << "others see the queue as it is";
}

TEST(Resumption, OneThatMustBeAloneHasItsStepsForItselfUntilItsNextToken) {
  Rig rig({.blocks = 100, .block_tokens = 4, .slots = 8, .budget = 8, .max_length = 200});
  for (const std::uint64_t key : {1u, 3u}) rig.add(key, 4, 50);
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  Submit request = again({resumed(2, 20, {21})});
  request.alone = true;
  ASSERT_TRUE(submit(rig, std::move(request)).ok());
  EXPECT_EQ(rig.scheduler.running(), 3);
  for (int i = 0; i < 3; ++i) {  // 21 tokens, 8 a step
    ASSERT_TRUE(rig.plan());
    ASSERT_EQ(rig.rows().size(), 1u);
    EXPECT_EQ(rig.rows()[0].position, 8 * i);
    rig.commit(5);
    EXPECT_EQ(rig.events().size(), i == 2 ? 1u : 0u);
  }
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 3u) << "its token clears it";
}

TEST(Resumption, ChoicesThatMustBeAloneRunOneAfterTheOther) {
  Rig rig({.blocks = 100, .budget = 64});
  SequenceSpec second = resumed(2, 8, {22});
  second.parent = {1, 1};
  second.prompt.clear();
  Submit request = again({resumed(1, 8, {21}), second});
  request.alone = true;
  ASSERT_TRUE(submit(rig, std::move(request)).ok());
  for (const std::uint64_t key : {1u, 2u}) {
    ASSERT_TRUE(rig.plan());
    ASSERT_EQ(rig.rows().size(), 1u);
    rig.commit(5);
    ASSERT_EQ(rig.events().size(), 1u);
    EXPECT_EQ(rig.events()[0].key.lo, key);
  }
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 2u);
}

TEST(Resumption, AWorkerThatDiesWhileOneIsAloneProvesItGuilty) {
  Rig rig;
  Submit request = again({resumed(1, 8, {21})});
  request.alone = true;
  ASSERT_TRUE(submit(rig, std::move(request)).ok());
  rig.add(2, 8, 9);
  ASSERT_TRUE(rig.plan());
  rig.scheduler.detach(Orphans::requeue, "Gone.", rig.out);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].finish, Finish::poisoned);
  EXPECT_EQ(rig.events()[0].key.lo, 1u);
}

// -------------------------------------------------------------------------- fronts

Submit first_time(std::uint64_t key, std::int32_t prompt, std::int32_t max_output, std::uint32_t host = 0) {
  Submit request = again({resumed(key, prompt, {}, max_output)}, 1, 0);
  request.sequences[0].host = host;
  return request;
}

TEST(Fronts, EachGetsItsOwn) {
  Rig rig({.blocks = 100, .budget = 64});
  ASSERT_TRUE(submit(rig, first_time(1, 5, 9, 2), 7).ok());
  ASSERT_TRUE(submit(rig, first_time(2, 5, 9, 2), 8).ok());
  ASSERT_TRUE(submit(rig, first_time(3, 5, 9, 0), 8).ok());
  ASSERT_TRUE(submit(rig, first_time(4, 5, 9, 2), 7).ok());
  rig.plan();
  rig.commit(5);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint64_t>> got;
  for (const HostTokens& host : rig.out.hosts) {
    for (const SequenceTokens& s : host.step.sequences) got[{host.front, host.host}].push_back(s.key.lo);
  }
  EXPECT_EQ(got.size(), 3u);
  EXPECT_EQ((got[{7, 2}]), (std::vector<std::uint64_t>{1, 4}));
  EXPECT_EQ((got[{8, 2}]), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ((got[{8, 0}]), (std::vector<std::uint64_t>{3}));
}

TEST(Fronts, WhileOneIsHeldItsSequencesAreNotPlanned) {
  Rig rig({.blocks = 100, .slots = 8, .budget = 64});
  ASSERT_TRUE(submit(rig, first_time(1, 5, 30), 1).ok());
  ASSERT_TRUE(submit(rig, first_time(2, 5, 30), 2).ok());
  rig.plan();
  rig.plan();
  rig.scheduler.hold(1, true);
  rig.commit(5);
  EXPECT_EQ(rig.events().size(), 2u) << "plans in flight still yield tokens";
  rig.commit(5);
  ASSERT_TRUE(submit(rig, first_time(3, 5, 30), 1).ok());
  EXPECT_EQ(rig.scheduler.running(), 2) << "and none of it is admitted";
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(rig.plan());
    ASSERT_EQ(rig.rows().size(), 1u);
    rig.commit(5);
    ASSERT_EQ(rig.events().size(), 1u);
    EXPECT_EQ(rig.events()[0].key.lo, 2u);
  }
  rig.scheduler.hold(1, false);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 3u);
  rig.commit(5);
  EXPECT_EQ(rig.events()[0].position, 2);
}

TEST(Fronts, WithTheOnlyOneHeldNothingIsPlanned) {
  Rig rig({.blocks = 100, .budget = 4});
  rig.add(1, 5, 30);
  rig.plan();
  rig.commit(5);
  rig.scheduler.hold(0, true);
  rig.add(2, 5, 30);
  EXPECT_FALSE(rig.plan());
  rig.scheduler.cancel({1, 2});
  rig.scheduler.hold(0, false);
  rig.exchange();
  EXPECT_TRUE(rig.plan());
}

TEST(Fronts, AHeldSequenceTakesNoBlocks) {
  Rig rig({.blocks = 100, .block_tokens = 4, .budget = 64});
  ASSERT_TRUE(submit(rig, first_time(1, 7, 30), 1).ok());
  EXPECT_EQ(rig.cache.table({1, 1}).size(), 2u);
  ASSERT_FALSE(rig.scheduler.plan(1).empty());  // the next plan needs a third block
  rig.scheduler.hold(1, true);
  rig.exchange();
  EXPECT_EQ(rig.cache.table({1, 1}).size(), 2u);
  rig.scheduler.hold(1, false);
  rig.exchange();
  EXPECT_EQ(rig.cache.table({1, 1}).size(), 3u);
}

TEST(Fronts, AHeldOneThatMustBeAloneDoesNotHoldUpAnotherFront) {
  Rig rig({.blocks = 100, .block_tokens = 4, .slots = 8, .budget = 8, .max_length = 200});
  Submit request = again({resumed(1, 20, {21})});
  request.alone = true;
  ASSERT_TRUE(submit(rig, std::move(request), 1).ok());
  ASSERT_TRUE(submit(rig, first_time(2, 5, 30), 2).ok());
  ASSERT_TRUE(rig.plan());
  rig.scheduler.hold(1, true);
  EXPECT_FALSE(rig.plan()) << "its plan in flight has the worker for itself";
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].key.lo, 2u);
  rig.scheduler.hold(1, false);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].position, 8) << "it goes on, alone again";
}

TEST(Fronts, ADroppedOneLeavesNothingBehind) {
  Rig rig({.blocks = 100, .slots = 2, .budget = 64});
  ASSERT_TRUE(submit(rig, first_time(1, 5, 30), 1).ok());
  ASSERT_TRUE(submit(rig, first_time(2, 5, 30), 2).ok());
  ASSERT_TRUE(submit(rig, first_time(3, 5, 30), 1).ok());  // waits
  rig.plan();
  rig.scheduler.hold(1, true);
  rig.scheduler.drop_front(1);
  rig.exchange();
  EXPECT_EQ(rig.scheduler.waiting(), 0);
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].key.lo, 2u);
  EXPECT_EQ(rig.cache.leases(), 1u);
  ASSERT_TRUE(submit(rig, first_time(4, 5, 30, 3), 1).ok())
      << "its number may be used again, and is not held";
  rig.plan();
  rig.commit(5);
  EXPECT_EQ(rig.events().size(), 2u);
  EXPECT_LE(rig.out.hosts.size(), 2u) << "the places of its hosts are used again";
  for (const std::uint32_t front : {1u, 2u}) rig.scheduler.drop_front(front);
  rig.exchange();
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.cache.leases(), 0u);
}

}  // namespace
}  // namespace troupe::test
