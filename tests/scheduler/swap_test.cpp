// Sequences whose blocks come back from the swap space. Blocks hold 4 tokens.
#include <gtest/gtest.h>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

struct SwapRig : Rig {
  explicit SwapRig(PrefixCaching caching = kCachesAll, std::int32_t blocks = 8)
      : Rig({.blocks = blocks, .budget = 64, .swap_blocks = 16}, {}, caching) {}

  void add(std::uint64_t key, std::vector<TokenId> prompt, std::int32_t max_output, bool cached = true) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, key};
    spec.prompt_tokens = static_cast<std::int32_t>(prompt.size());
    spec.prompt = std::move(prompt);
    spec.max_output_tokens = max_output;
    request.prefix.enabled = cached;
    ASSERT_TRUE(scheduler.submit(request).ok());
    exchange();
  }
  void run_all() {
    for (int step = 0; step < 100 && plan(); ++step) commit(5);
  }
  /// Leaves a prompt of 16 tokens in the swap space and other contents in the KV memory.
  void swap_out_a_prompt() {
    add(1, counted(16, 10), 1);
    run_all();
    add(2, counted(28, 15), 1);
    run_all();
    end_commands();
    ASSERT_GE(cache.status().swap.cached, 4);
  }
};

TEST(Swap, OnlyTheSequenceThatFetchesWaits) {
  SwapRig rig;
  rig.swap_out_a_prompt();
  rig.add(3, counted(18, 10), 3);
  EXPECT_EQ(rig.scheduler.fetching(), 1);
  EXPECT_EQ(rig.scheduler.running(), 1) << "it has a slot";
  EXPECT_FALSE(rig.plan()) << "it must not run yet";
  rig.add(4, counted(3, 20), 3);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 1u);
  EXPECT_EQ(rig.rows()[0].tokens, 3) << "the other one runs";
  rig.commit(5);
  rig.end_commands();
  EXPECT_EQ(rig.scheduler.fetching(), 0);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.rows().size(), 2u);
  EXPECT_EQ(rig.rows()[1].position, 16) << "behind the block that was there and the three that came back";
  rig.commit(5);
  EXPECT_EQ(rig.out.stats.cached_tokens, 16);
  EXPECT_EQ(rig.out.stats.swapped_tokens, 12) << "the first block had not left";
  EXPECT_EQ(rig.scheduler.totals().swapped_tokens, 12);
}

TEST(Swap, AfterAFailedFetchTheSequenceIsComputed) {
  SwapRig rig;
  rig.swap_out_a_prompt();
  rig.add(3, counted(18, 10), 1);
  rig.end_commands(false);
  EXPECT_EQ(rig.scheduler.fetching(), 0);
  EXPECT_EQ(rig.scheduler.totals().failed_fetches, 1u);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].position, 4) << "behind the block that had not left";
  EXPECT_EQ(rig.rows()[0].tokens, 14);
  rig.commit(5);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events()[0].cached_tokens, 4) << "what was computed is not counted";
  EXPECT_TRUE(rig.scheduler.idle());
}

TEST(Swap, CancellingAFetchReturnsItsBlocksAtOnce) {
  SwapRig rig;
  rig.swap_out_a_prompt();
  rig.add(3, counted(18, 10), 1);
  rig.scheduler.cancel({1, 3});
  rig.exchange();
  EXPECT_TRUE(rig.scheduler.idle());
  const CacheStatus s = rig.cache.status();
  EXPECT_EQ(s.free + s.cached, s.total);
  rig.end_commands();  // its outcome concerns nobody
  EXPECT_TRUE(rig.cache.sound());
}

TEST(Swap, ALostWorkerEndsFetchesAndTheNextOneComputes) {
  SwapRig rig;
  rig.swap_out_a_prompt();
  rig.add(3, counted(18, 10), 1);
  rig.scheduler.detach(Orphans::requeue, {}, rig.out);
  EXPECT_EQ(rig.scheduler.fetching(), 0);
  EXPECT_EQ(rig.scheduler.waiting(), 1);
  rig.attach(2);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].position, 0);
}

/// Two sequences that outgrow the KV memory together: the second is put back, and comes back with what it
/// had.
void preempt(const PrefixCaching& caching, bool cached) {
  SwapRig rig(caching);
  rig.add(1, counted(11, 10), 21, cached);
  rig.add(2, counted(11, 15), 13, cached);
  std::int32_t resumed_at = -1;
  for (int step = 0; step < 200 && !rig.scheduler.idle(); ++step) {
    if (rig.plan()) {
      for (const wire::PlanRow& row : rig.rows()) {
        if (row.slot.generation > 1 && row.position > 0 && resumed_at < 0) resumed_at = row.position;
      }
      rig.commit(5);
    }
    rig.end_commands();
  }
  EXPECT_TRUE(rig.scheduler.idle());
  EXPECT_EQ(rig.scheduler.totals().preempted, 1u);
  EXPECT_EQ(rig.scheduler.totals().fetches, 1u);
  EXPECT_GE(resumed_at, 12) << "answer tokens too";
  EXPECT_EQ(resumed_at % 4, 0);
  EXPECT_GT(rig.cache.status().swap.in, 0);
}

TEST(Swap, APreemptedSequenceGoesOnWhereItWas) { preempt(kCachesAll, true); }
TEST(Swap, AlsoWhenItSharesNoAnswer) { preempt({true, false, {1, 2}}, true); }
TEST(Swap, AlsoWhenItSharesNothing) { preempt(kCachesAll, false); }
TEST(Swap, AlsoWithoutAPrefixCache) { preempt({false, false, {1, 2}}, true); }

TEST(Swap, WhatAPreemptedSequenceDoesNotShareNobodyElseFinds) {
  SwapRig rig;
  rig.add(1, counted(11, 10), 21, false);
  rig.add(2, counted(11, 15), 13, false);
  for (int step = 0; step < 50 && rig.scheduler.totals().preempted == 0; ++step) {
    ASSERT_TRUE(rig.plan());
    rig.commit(5);
    rig.end_commands();
  }
  EXPECT_GT(rig.cache.status().swap.cached + rig.cache.status().cached, 0);
  rig.scheduler.cancel({1, 1});
  rig.scheduler.cancel({1, 2});
  rig.run_all();
  rig.end_commands();
  rig.add(3, counted(11, 15), 1, true);
  ASSERT_TRUE(rig.plan());
  EXPECT_EQ(rig.rows()[0].position, 0);
}

TEST(Swap, TheMeasuredSpeedOfPromptsIsToldToTheCacheManager) {
  Rig rig({.budget = 64}, {}, kCachesAll);
  rig.add(1, 30, 9);
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.scheduler.commit(rig.result(5), rig.out), Committed::applied);
  CacheAsks asks;
  ASSERT_TRUE(rig.scheduler.take_asks(asks));
  EXPECT_DOUBLE_EQ(asks.prefill_tokens_per_s, 30 / 0.002) << "the rig's steps take 2 ms";
}

}  // namespace
}  // namespace troupe::test
