// Workers that die: every text is compared with the undisturbed one, and a request that kills workers fails
// alone.
#include <gtest/gtest.h>

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
  EXPECT_EQ(sim.failed, 0) << "each had tokens of its own between two deaths";
}

TEST(Deaths, APromptThatKillsWorkersFailsAloneAtTheSecondDeath) {
  Simulation sim(roomy(), 7);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sim.submit(sim.spec(6, 40)));
  for (int i = 0; i < 10; ++i) sim.turn();
  ASSERT_TRUE(sim.submit(sim.spec(9, 40)));
  const RequestKey killer = sim.last_keys[0];
  sim.killers[killer] = 0;
  run_until_idle(sim);
  EXPECT_EQ(sim.guilty, std::set<RequestKey>{killer});
  EXPECT_EQ(sim.failed, 1);
  EXPECT_EQ(sim.finished, 12);
  EXPECT_EQ(sim.deaths, 2);
}

TEST(Deaths, ARequestThatKillsWorkersInTheMiddleOfItsAnswerFailsAlone) {
  Simulation sim(roomy(), 7);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sim.submit(sim.spec(6, 40)));
  sim.killers[sim.last_keys[0]] = 20;
  run_until_idle(sim);
  EXPECT_EQ(sim.guilty.size(), 1u);
  EXPECT_EQ(sim.failed, 1);
  EXPECT_EQ(sim.finished, 11);
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
  EXPECT_EQ(sim.guilty, killers);
  EXPECT_EQ(sim.finished, 9);
}

TEST(Deaths, ATokenOfItsOwnForgivesARequestEarlierDeaths) {
  Simulation sim(roomy(), 7);
  ASSERT_TRUE(sim.submit(sim.spec(6, 30)));
  for (int i = 0; sim.open() > 0 && i < 1000; ++i) {
    const std::int64_t before = sim.tokens;
    while (sim.tokens == before && sim.open() > 0) sim.turn();
    if (sim.open() > 0) sim.lose_worker(Orphans::requeue);
  }
  run_until_idle(sim);
  EXPECT_EQ(sim.finished, 1);
}

}  // namespace
}  // namespace troupe::test
