// What the scheduler finds in the prefix cache and what it leaves there. Blocks hold 4 tokens.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

constexpr PrefixCaching kPromptsOnly{true, false, {1, 2}};

SequenceSpec sequence(std::uint64_t key, std::vector<TokenId> prompt, std::int32_t max_output) {
  SequenceSpec spec;
  spec.key = {1, key};
  spec.prompt_tokens = static_cast<std::int32_t>(prompt.size());
  spec.prompt = std::move(prompt);
  spec.max_output_tokens = max_output;
  spec.stop_ids = {Rig::kStop};
  return spec;
}

void submit(Rig& rig, SequenceSpec spec, PrefixUse prefix = {}) {
  Submit request;
  request.sequences.push_back(std::move(spec));
  request.prefix = std::move(prefix);
  ASSERT_TRUE(rig.scheduler.submit(request).ok());
  rig.exchange();
}

/// Runs a request to its end by length. The first position that it ran.
std::int32_t run(Rig& rig, SequenceSpec spec, PrefixUse prefix = {}, TokenId token = 5) {
  submit(rig, std::move(spec), std::move(prefix));
  std::int32_t begin = -1;
  while (rig.plan()) {
    if (begin < 0) begin = rig.rows()[0].position;
    rig.commit(token);
  }
  EXPECT_TRUE(rig.scheduler.idle());
  return begin;
}

TEST(PrefixCache, ASecondPromptBeginsBehindTheFullBlocksItShares) {
  Rig rig({}, {}, kCachesAll);
  EXPECT_EQ(run(rig, sequence(1, counted(11), 1)), 0);
  std::vector<TokenId> other = counted(11);
  other[9] = 1;
  submit(rig, sequence(2, other, 1));
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].position, 8);
  EXPECT_EQ(rig.rows()[0].tokens, 3);
  EXPECT_EQ(rig.rows()[0].flags, wire::kSamples);
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].cached_tokens, 8);
  EXPECT_EQ(rig.out.stats.prompt_tokens, 3);
  EXPECT_EQ(rig.out.stats.admitted, 1);
  EXPECT_EQ(rig.out.stats.admitted_hits, 1);
  EXPECT_EQ(rig.out.stats.admitted_tokens, 11);
  EXPECT_EQ(rig.out.stats.cached_tokens, 8);
  EXPECT_EQ(rig.scheduler.totals().cached_tokens, 8);
  EXPECT_EQ(rig.scheduler.totals().prompt_tokens, 22);
}

TEST(PrefixCache, AtLeastTheLastTokenIsAlwaysRun) {
  Rig rig({}, {}, kCachesAll);
  EXPECT_EQ(run(rig, sequence(1, counted(8), 1)), 0);
  EXPECT_EQ(run(rig, sequence(2, counted(8), 1)), 4);
  EXPECT_EQ(run(rig, sequence(3, counted(9), 1)), 8);
}

TEST(PrefixCache, BlocksAreFoundOnlyAfterTheStepThatFilledThemIsBack) {
  Rig rig({.budget = 64}, {}, kCachesAll);
  submit(rig, sequence(1, counted(20), 9));
  ASSERT_TRUE(rig.plan());
  submit(rig, sequence(2, counted(20), 9));
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[1].position, 0);
  rig.commit(5);
  submit(rig, sequence(3, counted(20), 9));
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 3u);
  EXPECT_EQ(rig.rows()[2].position, 16);
}

TEST(PrefixCache, TheNextTurnOfAChatFindsTheAnswer) {
  Rig rig({}, {}, kCachesAll);
  run(rig, sequence(1, counted(6), 8));  // 14 tokens, of which 13 were run
  std::vector<TokenId> next = counted(6);
  next.insert(next.end(), 8, 5);
  next.insert(next.end(), {1, 2, 3});
  EXPECT_EQ(run(rig, sequence(2, next, 1)), 12);
}

TEST(PrefixCache, WithoutOutputCachingOnlyThePromptIsFound) {
  Rig rig({}, {}, kPromptsOnly);
  run(rig, sequence(1, counted(6), 8));
  std::vector<TokenId> next = counted(6);
  next.insert(next.end(), 8, 5);
  EXPECT_EQ(run(rig, sequence(2, next, 1)), 4);
}

TEST(PrefixCache, ATokenThatWasDiscardedIsInNoPublishedBlock) {
  Rig rig({}, {}, kCachesAll);
  submit(rig, sequence(1, counted(6), 20));
  rig.plan();
  rig.plan();
  rig.commit(Rig::kStop);  // position 6; the plan in flight runs it and samples position 7
  rig.commit(5);
  std::vector<TokenId> next = counted(6);
  next.insert(next.end(), {Rig::kStop, 5, 1});
  EXPECT_EQ(run(rig, sequence(2, next, 1)), 4) << "the block with position 7 was not full";
}

TEST(PrefixCache, SaltsAndRequestsWithoutCacheShareNothing) {
  Rig rig({}, {}, kCachesAll);
  EXPECT_EQ(run(rig, sequence(1, counted(9), 1), {false, ""}), 0);
  EXPECT_EQ(run(rig, sequence(2, counted(9), 1)), 0) << "the first left nothing";
  EXPECT_EQ(run(rig, sequence(3, counted(9), 1), {false, ""}), 0) << "and reads nothing";
  EXPECT_EQ(run(rig, sequence(4, counted(9), 1), {true, "a"}), 0);
  EXPECT_EQ(run(rig, sequence(5, counted(9), 1), {true, "a"}), 8);
  EXPECT_EQ(run(rig, sequence(6, counted(9), 1), {true, "b"}), 0);
}

TEST(PrefixCache, PromptLogprobsComputeEveryPositionButPublishToo) {
  Rig rig({}, {}, kCachesAll);
  run(rig, sequence(1, counted(9), 1));
  SequenceSpec scored = sequence(2, counted(9), 1);
  scored.sampling.prompt_logprobs = 0;
  EXPECT_EQ(run(rig, scored), 0);
  scored = sequence(3, counted(9, 20), 1);
  scored.sampling.prompt_logprobs = 0;
  EXPECT_EQ(run(rig, scored), 0);
  EXPECT_EQ(run(rig, sequence(4, counted(9, 20), 1)), 8);
}

TEST(PrefixCache, AStepThatFailedLeavesNothing) {
  Rig rig({.in_flight = 1}, {}, kCachesAll);
  submit(rig, sequence(1, counted(9), 5));
  rig.plan();
  rig.commit(5, wire::RowError::not_finite);
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.cache.status().free, rig.cache.status().total);
  EXPECT_EQ(run(rig, sequence(2, counted(9), 1)), 0);
}

TEST(PrefixCache, ANewWorkerHasNothingCached) {
  Rig rig({}, {}, kCachesAll);
  run(rig, sequence(1, counted(9), 1));
  rig.scheduler.detach(Orphans::requeue, "Gone.", rig.out);
  rig.attach(2);
  EXPECT_EQ(run(rig, sequence(2, counted(9), 1)), 0);
  EXPECT_EQ(run(rig, sequence(3, counted(9), 1)), 8);
}

TEST(PrefixCache, ASequenceThatWasPutBackFindsWhatItComputedAndCountsItsPromptOnce) {
  // Two sequences whose answers need more blocks than there are; the younger one is put back.
  Simulation sim({.blocks = 12, .block_tokens = 4, .slots = 2, .budget = 16, .max_length = 40, .repeats = 0},
                 1);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(sim.submit(sim.spec(8, 24)));
  ASSERT_TRUE(sim.drain(1000));
  sim.check_idle();
  EXPECT_EQ(sim.complaint, "");
  EXPECT_EQ(sim.clients().finished, 2);
  EXPECT_GT(sim.scheduler().totals().preempted, 0u);
  EXPECT_GT(sim.worker().cached_tokens(), 0);
  EXPECT_EQ(sim.scheduler().totals().cached_tokens, 0);
  EXPECT_EQ(sim.scheduler().totals().prompt_tokens, 16);
}

}  // namespace
}  // namespace troupe::test
