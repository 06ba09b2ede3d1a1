// Long prompts and short ones, priorities: who runs when, and the bounds on waiting.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

/// As the demo model on the CPU: 512 tokens a step. More than 320 tokens are a long prompt.
Setting demo() {
  Setting s;
  s.blocks = 800;
  s.block_tokens = 64;
  s.slots = 32;
  s.budget = 512;
  s.max_length = 8192;
  return s;
}

std::int32_t tokens_of(const Rig& rig, std::uint32_t slot) {
  for (const wire::PlanRow& row : rig.rows()) {
    if (row.slot.slot == slot) return row.tokens;
  }
  return 0;
}

/// Steps until the sequence `wanted` has a token, or 200 without one, while each brings eight prompts of 250
/// tokens, with keys above `key`.
int steps_beside_short_ones(Rig& rig, std::uint64_t wanted, std::uint64_t key) {
  int steps = 0;
  bool done = false;
  while (!done && steps < 200) {
    for (int i = 0; i < 8; ++i) rig.add(++key, 250, 1);
    const bool planned = rig.plan();
    EXPECT_TRUE(planned);
    if (!planned) break;
    ++steps;
    rig.commit(5);
    for (const SequenceTokens& event : rig.events()) done |= event.key == RequestKey{1, wanted};
  }
  EXPECT_TRUE(done);
  return steps;
}

/// `decoding` sequences with a token each, then `prompts` prompts of 3,000 tokens: tokens that these get in
/// the next step.
std::int32_t prompt_tokens_beside(std::uint64_t decoding, std::uint64_t prompts, double share) {
  config::SchedulerOptions options;
  options.min_prefill_share = share;
  Rig rig(demo(), options);
  for (std::uint64_t k = 1; k <= decoding; ++k) rig.add(k, 10, 50);
  if (decoding > 0) {
    EXPECT_TRUE(rig.plan());
    rig.commit(5);
  }
  for (std::uint64_t k = 1; k <= prompts; ++k) rig.add(100 + k, 3000, 5);
  EXPECT_TRUE(rig.plan());
  std::int32_t tokens = 0;
  for (const wire::PlanRow& row : rig.rows()) tokens += row.tokens > 1 ? row.tokens : 0;
  return tokens;
}

TEST(Fairness, PromptsTakeLessOfAStepTheFewerTheyAreBesideDecodes) {
  EXPECT_EQ(prompt_tokens_beside(0, 1, 0.1), 512);
  EXPECT_EQ(prompt_tokens_beside(2, 1, 0.1), 510) << "half as many as decode: the whole step";
  EXPECT_EQ(prompt_tokens_beside(20, 10, 0.1), 492);
  EXPECT_EQ(prompt_tokens_beside(20, 5, 0.1), 256);
  EXPECT_EQ(prompt_tokens_beside(20, 1, 0.05), 51);
  EXPECT_EQ(prompt_tokens_beside(20, 1, 0.25), 128) << "never less than the share";
  EXPECT_EQ(prompt_tokens_beside(20, 1, 1), 492);
  EXPECT_EQ(prompt_tokens_beside(20, 1, 0), 492) << "unset: 512 at least, all of a step on a CPU";
}

TEST(Fairness, AShortPromptAnswersWithinThreeStepsWhileLongOnesRun) {
  for (const std::uint64_t long_prompts : {1, 3}) {
    Rig rig(demo());
    for (std::uint64_t k = 1; k <= long_prompts; ++k) rig.add(k, 8000, 10);
    ASSERT_TRUE(rig.plan());
    ASSERT_TRUE(rig.plan());
    rig.add(9, 10, 10);  // two steps are in flight: the third is the first that can hold it
    rig.commit(5);
    ASSERT_TRUE(rig.plan());
    ASSERT_EQ(rig.rows().size(), 2u);
    EXPECT_EQ(rig.rows()[0].tokens, 10);
    EXPECT_EQ(rig.rows()[0].flags, wire::kSamples);
    EXPECT_EQ(rig.rows()[1].tokens, 502) << "the long one gets the rest";
  }
}

TEST(Fairness, ALongPromptGetsAQuarterOfTheStepsHoweverManyShortOnesCome) {
  Rig rig(demo());
  rig.add(1, 8000, 1);
  EXPECT_LE(steps_beside_short_ones(rig, 1, 1), 8000 / (512 / 4) + 1);
}

TEST(Fairness, TheNextLongPromptIsAdmittedWhenTheFirstIsComputedAlthoughShortOnesKeepComing) {
  Rig rig(demo());
  rig.add(1, 2000, 1);
  rig.add(2, 2000, 1);
  EXPECT_LE(steps_beside_short_ones(rig, 2, 2), 2 * 2000 / (512 / 4) + 2);
}

TEST(Fairness, LongPromptsShareAStepWhenTheOptionAllowsIt) {
  config::SchedulerOptions options;
  options.max_long_partial_prefills = 2;
  Rig rig(demo(), options);
  for (std::uint64_t k = 1; k <= 3; ++k) rig.add(k, 2000, 1);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(tokens_of(rig, 0), 256);
  EXPECT_EQ(tokens_of(rig, 1), 256);
  EXPECT_EQ(tokens_of(rig, 2), 0);
}

TEST(Fairness, TheThresholdSaysWhatIsLong) {
  config::SchedulerOptions options;
  options.long_prefill_token_threshold = 100;
  Rig rig(demo(), options);
  rig.add(1, 150, 1);
  rig.add(2, 150, 1);
  rig.add(3, 90, 1);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[0].tokens, 90);
  EXPECT_EQ(rig.rows()[1].tokens, 150);
}

TEST(Fairness, AStepThatHoldsSeveralPromptsTakesThemTogether) {
  Setting wide = demo();
  wide.budget = 8192;
  Rig rig(wide);
  for (std::uint64_t k = 1; k <= 4; ++k) rig.add(k, 2000, 1);  // more than 4 % of the model's length
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 4u);
}

TEST(Fairness, OnePartialPrefillMeansOnePromptAtATime) {
  config::SchedulerOptions options;
  options.max_num_partial_prefills = 1;
  Rig rig(demo(), options);
  rig.add(1, 700, 5);
  rig.add(2, 10, 5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 1u);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u) << "the prompt's second part";
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[1].tokens, 10);
}

void submit(Rig& rig, std::uint64_t key, std::int32_t priority) {
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, key};
  spec.prompt = {3};
  spec.prompt_tokens = spec.max_output_tokens = 1;
  request.priority = priority;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
}

/// Runs one step of one slot; the key that it answered.
std::uint64_t next_answer(Rig& rig) {
  if (!rig.plan()) return 0;
  rig.commit(5);
  return rig.events().empty() ? 0 : rig.events()[0].key.lo;
}

Setting one_slot() {
  Setting s;
  s.slots = 1;
  s.in_flight = 1;
  return s;
}

TEST(Priority, LowerNumbersRunFirstAndEqualOnesInOrder) {
  Rig rig(one_slot());
  submit(rig, 1, 0);  // is admitted at once
  submit(rig, 2, 5);
  submit(rig, 3, 0);
  submit(rig, 4, -1);
  submit(rig, 5, 0);
  for (const std::uint64_t expected : {1, 4, 3, 5, 2}) EXPECT_EQ(next_answer(rig), expected);
}

TEST(Priority, ASequenceIsOvertakenByABoundedNumberOfMoreUrgentOnes) {
  Rig rig(one_slot());
  submit(rig, 1, 0);
  submit(rig, 2, 1);
  std::int64_t overtakers = 0;
  for (std::uint64_t key = 3; key < 2000; ++key) {
    submit(rig, key, 0);
    if (next_answer(rig) == 2) break;
    ++overtakers;
  }
  EXPECT_GE(overtakers, Scheduler::kPriorityWeight - 2);
  EXPECT_LE(overtakers, Scheduler::kPriorityWeight + 1);
}

TEST(Priority, TheLeastUrgentSequenceIsPutBackFirst) {
  Rig rig({.blocks = 8, .block_tokens = 4, .slots = 2, .budget = 16, .max_length = 32, .in_flight = 1});
  for (const auto& [key, priority] : {std::pair{1, 3}, std::pair{2, 0}}) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, static_cast<std::uint64_t>(key)};
    spec.prompt.assign(8, 3);
    spec.prompt_tokens = 8;
    spec.max_output_tokens = 20;
    request.priority = priority;
    ASSERT_TRUE(rig.scheduler.submit(request).ok());
    rig.exchange();
  }
  while (rig.scheduler.totals().preempted == 0 && rig.plan()) rig.commit(5);
  EXPECT_EQ(rig.scheduler.totals().preempted, 1u);
  EXPECT_TRUE(rig.cache.table({1, 1}).empty());
  EXPECT_FALSE(rig.cache.table({1, 2}).empty());
}

}  // namespace
}  // namespace troupe::test
