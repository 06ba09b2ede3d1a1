// Plans keep to a budget of time: what that means for a long prompt, for prompts that arrive and for streams.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

constexpr double kLimit_s = 0.25;

Setting two_cores() {
  Setting s;
  s.blocks = 800;
  s.block_tokens = 64;
  s.slots = 32;
  s.budget = 512;
  s.max_length = 8192 + 64;
  return s;
}

config::SchedulerOptions within_limit() {
  config::SchedulerOptions o;
  o.max_prefill_step_ms = 250;
  return o;
}

StepWork work_of(std::span<const wire::PlanRow> rows) {
  StepWork work;
  for (const wire::PlanRow& row : rows) work.add(row.position, row.tokens);
  return work;
}

/// A small model on two cores: a step reads the weights, tokens cost 2 ms each, attention grows.
double cpu_s(std::span<const wire::PlanRow> rows) {
  const StepWork w = work_of(rows);
  return 6e-3 + 2e-3 * static_cast<double>(w.tokens) + 0.1e-6 * static_cast<double>(w.context) +
         0.35e-6 * static_cast<double>(w.pairs);
}

struct TimedRig : Rig {
  explicit TimedRig(config::SchedulerOptions options = within_limit()) : Rig(two_cores(), options) {
    step_s = cpu_s;
  }

  std::int32_t tokens_of(std::uint32_t slot) const {
    for (const wire::PlanRow& row : rows()) {
      if (row.slot.slot == slot) return row.tokens;
    }
    return 0;
  }
  /// Makes one step of the last plan alone, and the next; false when there is none.
  bool step() {
    commit(5);
    return plan();
  }
  /// A prompt of 8,000 tokens that is computed up to `position` at least.
  void compute_long_prompt(std::int32_t position) {
    add(1, 8000, 50);
    ASSERT_TRUE(plan());
    while (rows()[0].position < position) ASSERT_TRUE(step());
  }
};

TEST(StepBudgetPlans, NoStepOfALongPromptIsLongerThanTheLimitAndItEnds) {
  TimedRig rig;
  rig.compute_long_prompt(0);
  std::int32_t at = 0;
  int steps = 0;
  while (rig.tokens_of(0) > 1) {
    EXPECT_EQ(rig.rows()[0].position, at);
    at += rig.tokens_of(0);
    EXPECT_LE(cpu_s(rig.rows()), 1.1 * kLimit_s);
    ++steps;
    ASSERT_TRUE(rig.step());
  }
  EXPECT_EQ(at, 8000);
  EXPECT_LT(steps, 170) << "the time is used: the whole prompt takes 27 s";
}

TEST(StepBudgetPlans, WithoutALimitTokensAloneCutAPrompt) {
  TimedRig rig{config::SchedulerOptions{}};
  rig.compute_long_prompt(4000);
  EXPECT_EQ(rig.tokens_of(0), 512);
  EXPECT_GT(cpu_s(rig.rows()), 3 * kLimit_s);
}

TEST(StepBudgetPlans, StreamsHaveATokenInEveryStepBesideALongPrompt) {
  TimedRig rig;
  for (std::uint64_t k = 11; k <= 14; ++k) rig.add(k, 10, 400);
  ASSERT_TRUE(rig.plan());
  ASSERT_TRUE(rig.step());
  rig.add(1, 8000, 5);
  int steps = 0;
  std::int32_t computed = 0;
  ASSERT_TRUE(rig.plan());  // two in flight
  while (computed < 8000 && steps < 300) {
    std::int32_t decodes = 0, prompts = 0;
    for (const wire::PlanRow& row : rig.rows()) {
      ++(row.tokens == 1 ? decodes : prompts);
      computed += row.tokens > 1 ? row.tokens : 0;
    }
    EXPECT_GE(decodes, 4) << "no stream sits a step out";
    EXPECT_EQ(prompts, computed < 8000 || prompts == 1 ? 1 : 0);
    if (prompts > 0) {
      EXPECT_LE(cpu_s(rig.rows()), 1.1 * kLimit_s);
    }
    rig.commit(5);
    EXPECT_EQ(rig.scheduler.plans_in_flight(), 1) << "two steps are in flight beside streams";
    ASSERT_TRUE(rig.plan());
    ++steps;
  }
  EXPECT_EQ(computed, 8000);
}

TEST(StepBudgetPlans, WhilePromptsAloneRunANewcomerWaitsForOneStep) {
  for (const std::int32_t position : {1000, 3000, 7000}) {
    TimedRig rig;
    rig.compute_long_prompt(position);
    EXPECT_FALSE(rig.plan()) << "the next chunk waits for the end of this one";
    rig.add(9, 10, 20);
    ASSERT_TRUE(rig.plan()) << "a prompt that arrives does not";
    ASSERT_EQ(rig.rows().size(), 2u);
    EXPECT_EQ(rig.rows()[0].tokens, 10);
    EXPECT_EQ(rig.rows()[0].flags, wire::kSamples);
    const wire::PlanRow& beside = rig.rows()[1];
    EXPECT_GE(beside.tokens, 16) << "the long one goes on";
    const double with = cpu_s(rig.rows()), without = cpu_s(rig.rows().first(1));
    EXPECT_TRUE(with - without <= 1.25 * kLimit_s / 6 || beside.tokens == 16)
        << "a sixth, or the least chunk";
    EXPECT_LE(with, kLimit_s / 2);
  }
}

TEST(StepBudgetPlans, ALongPromptEndsAlthoughAPromptArrivesInEveryStep) {
  TimedRig rig;
  rig.compute_long_prompt(2000);
  int steps = 0;
  bool done = false;
  std::uint64_t key = 100;
  while (!done && steps < 1000) {
    rig.add(++key, 10, 1);
    if (rig.scheduler.plans_in_flight() < 2) rig.plan();
    rig.commit(5);
    for (const SequenceTokens& event : rig.events()) done |= event.key == RequestKey{1, 1};
    ++steps;
  }
  EXPECT_TRUE(done);
  EXPECT_LE(steps, 6000 / 16);
}

TEST(StepBudgetPlans, QuickPromptsPassSlowOnesThatAreNotLong) {
  TimedRig rig;
  rig.compute_long_prompt(2000);  // for what is learnt
  rig.scheduler.cancel({1, 1});
  rig.commit(5);
  rig.add(2, 300, 5);  // not long, but 0.65 s
  ASSERT_TRUE(rig.plan());
  EXPECT_LE(cpu_s(rig.rows()), 1.1 * kLimit_s);
  rig.add(3, 10, 5);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[0].tokens, 10) << "before the rest of the slow one";
  EXPECT_LE(cpu_s(rig.rows()), 1.1 * kLimit_s);
}

TEST(StepBudgetPlans, OnePromptBesideManyStreamsTakesAThirdOfTheTimeThatTheyLeave) {
  for (const double share : {0.0, 1.0}) {
    config::SchedulerOptions options = within_limit();
    options.min_prefill_share = share;
    TimedRig rig(options);
    for (std::uint64_t k = 11; k <= 30; ++k) rig.add(k, 10, 400);
    ASSERT_TRUE(rig.plan());
    ASSERT_TRUE(rig.step());
    rig.add(1, 8000, 5);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(rig.step());
    ASSERT_EQ(rig.rows().size(), 21u);
    const double streams = cpu_s(rig.rows().first(20)), part = share > 0 ? 1 : 1.0 / 3;
    EXPECT_NEAR(cpu_s(rig.rows()), streams + part * (kLimit_s - streams), 0.17 * kLimit_s);
    EXPECT_EQ(cpu_s(rig.rows()) < 0.6 * kLimit_s, share == 0);
  }
}

TEST(StepBudgetPlans, OneSlowStepDoesNotKeepChunksSmall) {
  TimedRig rig;
  rig.compute_long_prompt(2000);
  const std::int32_t usual = rig.tokens_of(0);
  rig.step_s = [](auto rows) { return 20 * cpu_s(rows); };
  ASSERT_TRUE(rig.step());
  rig.step_s = cpu_s;
  EXPECT_GE(rig.tokens_of(0), usual * 3 / 4 - 16);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(rig.step());
  EXPECT_GE(rig.tokens_of(0), usual * 3 / 4 - 16);
}

TEST(StepBudgetPlans, ASuspectThatRunsAloneKeepsToTheLimit) {
  TimedRig rig;
  rig.compute_long_prompt(2000);
  rig.scheduler.detach(Orphans::requeue, "lost", rig.out);
  rig.attach(2);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_GT(rig.tokens_of(0), 80) << "what was learnt of the model is kept";
  EXPECT_LE(cpu_s(rig.rows()), 1.1 * kLimit_s);
}

TEST(StepBudgetPlans, TellsMeasuredAndPredictedTime) {
  TimedRig rig;
  rig.compute_long_prompt(4000);
  rig.commit(5);
  EXPECT_NEAR(rig.out.stats.predicted_s, rig.out.stats.step_s, 0.1 * rig.out.stats.step_s);
}

}  // namespace
}  // namespace troupe::test
