// Requests of batches: behind all others in every respect.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

void submit(Rig& rig, std::uint64_t key, std::int32_t prompt, std::int32_t output, bool background,
            std::int32_t priority = 0) {
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, key};
  spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
  spec.prompt_tokens = prompt;
  spec.max_output_tokens = output;
  request.background = background;
  request.priority = priority;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
}

/// Runs one step; the keys that got a token in it.
std::set<std::uint64_t> step(Rig& rig) {
  std::set<std::uint64_t> keys;
  if (!rig.plan()) return keys;
  rig.commit(5);
  for (const SequenceTokens& event : rig.events()) keys.insert(event.key.lo);
  return keys;
}

Setting slots(std::int32_t count, std::int32_t in_flight = 1) {
  Setting s;
  s.blocks = 400;
  s.slots = count;
  s.budget = 64;
  s.max_length = 60;
  s.in_flight = in_flight;
  return s;
}

TEST(Background, LeavesSlotsFree) {
  Rig rig(slots(8));
  for (std::uint64_t k = 1; k <= 20; ++k) submit(rig, k, 4, 30, true);
  EXPECT_EQ(rig.scheduler.running(), 7) << "an eighth of 8";
  config::SchedulerOptions options;
  options.batch_reserved_seqs = 3;
  Rig more(slots(8), options);
  for (std::uint64_t k = 1; k <= 20; ++k) submit(more, k, 4, 30, true);
  EXPECT_EQ(more.scheduler.running(), 5);
  options.batch_reserved_seqs = 100;
  Rig one(slots(8), options);
  for (std::uint64_t k = 1; k <= 20; ++k) submit(one, k, 4, 30, true);
  EXPECT_EQ(one.scheduler.running(), 1) << "one at least, or a batch would never end";
}

TEST(Background, OthersComeFirstWhateverTheirPriority) {
  Rig rig(slots(1));
  submit(rig, 1, 1, 1, false);  // is admitted at once
  submit(rig, 2, 1, 1, true, -2147483647);
  submit(rig, 3, 1, 1, true, 0);
  submit(rig, 4, 1, 1, false, 2147483647);
  submit(rig, 5, 1, 1, false);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 5; ++i) {
    for (const std::uint64_t key : step(rig)) order.push_back(key);
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 5, 4, 2, 3}));
}

TEST(Background, OthersTakeAsManySlotsAsTheyNeed) {
  Rig rig(slots(8));
  for (std::uint64_t k = 1; k <= 20; ++k) submit(rig, k, 4, 40, true);
  for (int i = 0; i < 3; ++i) step(rig);
  for (std::uint64_t k = 101; k <= 106; ++k) submit(rig, k, 4, 3, false);
  const std::set<std::uint64_t> clients{101, 102, 103, 104, 105, 106};
  EXPECT_EQ(step(rig), clients) << "nothing was in flight: the next step is theirs, and theirs alone";
  EXPECT_EQ(rig.scheduler.totals().preempted, 5u) << "one slot was free";
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 400 && !rig.scheduler.idle(); ++i) seen.merge(step(rig));
  EXPECT_TRUE(rig.scheduler.idle()) << "the batch ends, too";
  EXPECT_EQ(seen.size(), 26u);
}

TEST(Background, NoRowOfItRunsBesideThePromptOfAnother) {
  Rig rig(slots(8));
  for (std::uint64_t k = 1; k <= 4; ++k) submit(rig, k, 4, 40, true);
  step(rig);
  submit(rig, 101, 30, 5, false);
  EXPECT_EQ(step(rig), (std::set<std::uint64_t>{101}));
  EXPECT_EQ(step(rig).size(), 5u) << "beside its decodes they run";
}

TEST(Background, StepsWithItsPromptsAreTheOnlyOnesInFlight) {
  Rig rig(slots(8, 2));
  for (std::uint64_t k = 1; k <= 3; ++k) submit(rig, k, 50, 5, true);
  ASSERT_TRUE(rig.plan());
  EXPECT_FALSE(rig.plan()) << "who comes now waits for one step";
  submit(rig, 101, 4, 5, false);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].tokens, 4);
}

/// Three sequences of a batch have run their prompts, and decode in steps of so many seconds.
void decode_a_batch(Rig& rig, double step_s) {
  rig.step_s = [step_s](auto) { return step_s; };
  for (std::uint64_t k = 1; k <= 3; ++k) submit(rig, k, 4, 40, true);
  step(rig);
}

TEST(Background, WhereStepsAreSlowOneOfItIsTheOnlyOneInFlight) {
  Rig rig(slots(8, 2));
  decode_a_batch(rig, 1.1 * StepPlanner::kSlowStep);
  ASSERT_TRUE(rig.plan());
  EXPECT_FALSE(rig.plan()) << "decodes, too";
  submit(rig, 101, 4, 5, false);
  ASSERT_TRUE(rig.plan()) << "a client's prompt waits for no plan";
  ASSERT_EQ(rig.rows().size(), 1u);
  rig.commit(5);
  rig.commit(5);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows().size(), 4u);
  EXPECT_FALSE(rig.plan()) << "another client would wait for both";
}

TEST(Background, WhereStepsAreQuickTwoAreInFlight) {
  Rig rig(slots(8, 2));
  decode_a_batch(rig, 0.9 * StepPlanner::kSlowStep);
  EXPECT_TRUE(rig.plan());
  EXPECT_TRUE(rig.plan());
}

TEST(Background, StepsOfItAloneAreShort) {
  config::SchedulerOptions options;
  options.max_prefill_step_ms = 250;
  Setting s = slots(8);
  s.budget = 512;
  s.max_length = 1000;
  s.blocks = 1200;
  constexpr double kTokenS = 1e-3;
  for (const bool background : {true, false}) {
    Rig rig(s, options);
    rig.step_s = [](std::span<const wire::PlanRow> rows) {
      double seconds = 0;
      for (const wire::PlanRow& row : rows) seconds += kTokenS * row.tokens;
      return seconds;
    };
    double longest = 0;
    for (std::uint64_t k = 1; k <= 4; ++k) submit(rig, k, 900, 2, background);
    for (int i = 0; i < 200 && rig.plan(); ++i) {
      longest = std::max(longest, rig.step_s(rig.rows()));
      rig.commit(5);
    }
    EXPECT_TRUE(rig.scheduler.idle());
    if (background) {
      EXPECT_LE(longest, 1.2 * StepBudget::kBackgroundStepS);
    } else {
      EXPECT_GT(longest, 1.2 * StepBudget::kBackgroundStepS);
    }
  }
}

TEST(Background, ItsQueueTakesNoRoomFromClients) {
  config::SchedulerOptions options;
  options.max_queued_requests = 4;
  options.max_queued_tokens = 100;
  Rig rig(slots(2), options);
  for (std::uint64_t k = 1; k <= 4; ++k) submit(rig, k, 20, 5, true);
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 5};
  spec.prompt.assign(51, 3);
  spec.prompt_tokens = 51;
  spec.max_output_tokens = 5;
  request.background = true;
  EXPECT_EQ(rig.scheduler.submit(request).code, Code::overloaded) << "three of 20 tokens wait";
  submit(rig, 101, 51, 5, false);  // takes the free slot
  submit(rig, 102, 51, 5, false);  // takes the other
  submit(rig, 103, 51, 5, false);
  spec.key = {1, 104};
  request.background = false;
  EXPECT_EQ(rig.scheduler.submit(request).code, Code::overloaded) << "of clients, that wait";
}

TEST(Background, BlocksAreTakenFromItBeforeItsNextStep) {
  Setting s = slots(8);
  s.blocks = 20;
  Rig rig(s);
  for (std::uint64_t k = 1; k <= 3; ++k) submit(rig, k, 20, 20, true);
  step(rig);
  ASSERT_TRUE(rig.plan());
  Submit request;
  SequenceSpec& spec = request.sequences.emplace_back();
  spec.key = {1, 101};
  spec.prompt.assign(40, 3);
  spec.prompt_tokens = 40;
  spec.max_output_tokens = 3;
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  // The engine's order: after every event a plan first, then the asks, whose answers are the next event.
  const auto plans = [&] {
    for (;;) {
      const std::span<const std::byte> plan = rig.scheduler.plan(1);
      const bool planned = !plan.empty();
      if (planned) {
        rig.record.assign(plan.begin(), plan.end());
        EXPECT_TRUE(wire::RecordView::open(rig.record, rig.view));
      }
      CacheAsks asks;
      CacheGrants grants;
      const bool asked = rig.scheduler.take_asks(asks);
      if (asked) {
        rig.cache.answer(asks, grants);
        rig.scheduler.granted(grants);
      }
      if (planned || !asked) return planned;
    }
  };
  EXPECT_FALSE(plans()) << "the step runs that was planned before";
  ASSERT_EQ(rig.scheduler.commit(rig.result(5), rig.out), Committed::applied);
  ASSERT_TRUE(plans());
  EXPECT_GE(rig.scheduler.totals().preempted, 1u);
  EXPECT_EQ(rig.scheduler.plans_in_flight(), 1);
  ASSERT_EQ(rig.rows().size(), 1u) << "of the client alone";
}

TEST(Background, BlocksAreTakenFromIt) {
  Setting s = slots(8);
  s.blocks = 20;
  Rig rig(s);
  for (std::uint64_t k = 1; k <= 3; ++k) submit(rig, k, 20, 20, true);
  step(rig);
  submit(rig, 101, 40, 3, false);
  bool answered = false;
  for (int i = 0; i < 6 && !answered; ++i) answered = step(rig).contains(101);
  EXPECT_TRUE(answered);
  EXPECT_GE(rig.scheduler.totals().preempted, 1u);
  for (int i = 0; i < 400 && !rig.scheduler.idle(); ++i) step(rig);
  EXPECT_TRUE(rig.scheduler.idle());
}

}  // namespace
}  // namespace troupe::test
