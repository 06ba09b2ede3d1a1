// Workers that die: every text is compared with the undisturbed one, and a request that kills workers fails
// alone.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"
#include "tests/scheduler/simulation.h"

namespace troupe::test {
namespace {

Setting roomy() {
  Setting s;
  s.blocks = 300;
  s.slots = 20;
  s.budget = 40;
  return s;
}

void run_until_idle(Simulation& sim) {
  ASSERT_TRUE(sim.drain(20'000));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
}

TEST(Deaths, EveryTextIsAsUndisturbedHoweverOftenWorkersDie) {
  Setting setting = roomy();
  setting.blocks = 1500;
  setting.max_length = 250;
  Simulation sim(setting, 7);
  for (int i = 0; i < 16; ++i) {
    SequenceSpec spec = sim.spec(4 + i, 200);
    if (i % 4 == 0) spec.sampling.logprobs = 2;
    if (i % 8 == 1) spec.sampling.prompt_logprobs = 0;
    ASSERT_TRUE(sim.submit(spec, i % 3 == 0 ? 2 : 1));
  }
  int losses = 0;
  for (int i = 0; sim.open() > 0 && i < 10'000; ++i) {
    sim.turn();
    if (i % 100 != 99) continue;
    sim.lose_worker(Orphans::requeue);
    ++losses;
  }
  run_until_idle(sim);
  EXPECT_GT(losses, 3);
  EXPECT_EQ(sim.clients().failed, 0) << "each had tokens of its own between two deaths";
}

TEST(Deaths, APromptThatKillsWorkersFailsAloneAtTheSecondDeath) {
  Simulation sim(roomy(), 7);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sim.submit(sim.spec(6, 40)));
  for (int i = 0; i < 10; ++i) sim.turn();
  ASSERT_TRUE(sim.submit(sim.spec(9, 40)));
  const RequestKey killer = sim.last_keys[0];
  sim.killers[killer] = 0;
  run_until_idle(sim);
  EXPECT_EQ(sim.clients().poisoned, std::set<RequestKey>{killer});
  EXPECT_EQ(sim.clients().failed, 1);
  EXPECT_EQ(sim.clients().finished, 12);
  EXPECT_EQ(sim.deaths, 2);
}

TEST(Deaths, ARequestThatKillsWorkersInTheMiddleOfItsAnswerFailsAlone) {
  Simulation sim(roomy(), 7);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sim.submit(sim.spec(6, 40)));
  sim.killers[sim.last_keys[0]] = 20;
  run_until_idle(sim);
  EXPECT_EQ(sim.clients().poisoned.size(), 1u);
  EXPECT_EQ(sim.clients().failed, 1);
  EXPECT_EQ(sim.clients().finished, 11);
  EXPECT_LE(sim.deaths, 3);
}

TEST(Deaths, SeveralKillersAreFoundOneByOne) {
  Simulation sim(roomy(), 7);
  std::set<RequestKey> killers;
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(sim.submit(sim.spec(6, 40)));
    if (i % 4 != 0) continue;
    sim.killers[sim.last_keys[0]] = 0;
    killers.insert(sim.last_keys[0]);
  }
  run_until_idle(sim);
  EXPECT_EQ(sim.clients().poisoned, killers);
  EXPECT_EQ(sim.clients().finished, 9);
}

TEST(Deaths, UnrelatedKillersConvictNoInnocent) {
  // While one killer is looked for, another one arrives or reaches its place, at every possible moment.
  for (int delay = 0; delay < 40; ++delay) {
    for (const std::int32_t place : {0, 12, 30}) {
      Simulation sim(roomy(), 7);
      for (int i = 0; i < 8; ++i) ASSERT_TRUE(sim.submit(sim.spec(6 + i, 40)));
      ASSERT_TRUE(sim.submit(sim.spec(30, 20)));
      const RequestKey first = sim.last_keys[0];
      sim.killers[first] = 20;
      for (int i = 0; i < delay; ++i) sim.turn();
      ASSERT_TRUE(sim.submit(sim.spec(9, 40)));
      const RequestKey second = sim.last_keys[0];
      sim.killers[second] = place;
      run_until_idle(sim);
      EXPECT_EQ(sim.clients().poisoned, (std::set<RequestKey>{first, second}))
          << delay << " turns, place " << place;
      EXPECT_EQ(sim.clients().finished, 8);
    }
  }
}

TEST(Deaths, AKillerThatYieldsOneTokenInEachLifeOfAWorkerFailsInTheEnd) {
  Simulation sim(roomy(), 7);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sim.submit(sim.spec(6, 48)));
  const RequestKey killer = sim.last_keys[0];
  std::int32_t& place = sim.killers[killer];
  place = 6;  // after one token
  for (int i = 0; i < 20'000 && sim.is_open(killer); ++i) {
    const int before = sim.deaths;
    sim.turn();
    place += sim.deaths - before;
  }
  run_until_idle(sim);
  EXPECT_EQ(sim.clients().poisoned, std::set<RequestKey>{killer});
  EXPECT_EQ(sim.clients().finished, 11);
  EXPECT_LE(sim.deaths, Scheduler::kMaxShortLives + 1);
}

TEST(Deaths, AnIsolatedSuspectHasItsStepsForItself) {
  Rig rig({.blocks = 100, .block_tokens = 4, .slots = 8, .budget = 64, .max_length = 200});
  rig.add(1, 6, 50);
  ASSERT_TRUE(rig.plan());
  rig.commit(5);
  rig.add(2, 7, 50);
  while (rig.plan()) {
  }  // two steps in flight: the first sequence's alone, then both
  rig.scheduler.detach(Orphans::requeue, "", rig.out);
  rig.attach(2);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u) << "the one that has had a token is computed first";
  EXPECT_EQ(rig.rows()[0].tokens, 7);
  rig.commit(5);
  rig.add(3, 5, 50);
  EXPECT_EQ(rig.scheduler.running(), 3);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].tokens, 7) << "the suspect's prompt, without the others' rows";
  EXPECT_EQ(rig.rows()[0].slot.slot, 1u);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 3u) << "its token clears it";
}

TEST(Deaths, TokensOfItsOwnForgiveARequestAnyNumberOfDeaths) {
  Setting setting = roomy();
  setting.max_length = 250;
  Simulation sim(setting, 7);
  ASSERT_TRUE(sim.submit(sim.spec(6, 200)));
  int losses = 0;
  while (sim.open() > 0 && losses < 1000) {
    const std::int64_t enough = sim.clients().tokens + Scheduler::kForgivingTokens;
    while (sim.clients().tokens < enough && sim.open() > 0) sim.turn();
    if (sim.open() == 0) break;
    sim.lose_worker(Orphans::requeue);
    ++losses;
  }
  run_until_idle(sim);
  EXPECT_GT(losses, 2 * Scheduler::kMaxShortLives);
  EXPECT_EQ(sim.clients().finished, 1);
}

}  // namespace
}  // namespace troupe::test
