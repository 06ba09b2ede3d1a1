// What of a worker's capacity the options let the scheduler use.
#include "actors/scheduler/worker_limits.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

wire::Capacity capacity() {
  wire::Capacity c;
  c.kv_blocks = 100;
  c.block_tokens = 16;
  c.max_slots = 32;
  c.max_tokens_per_step = 2048;
  c.max_model_len = 4096;
  c.vocab_size = 50;
  return c;
}

TEST(WorkerLimits, AreUnknownBeforeAWorker) {
  EXPECT_FALSE(WorkerLimits{}.known());
  EXPECT_TRUE(WorkerLimits::of({}, capacity()).known());
}

TEST(WorkerLimits, NoSequenceIsLongerThanAllBlocks) {
  EXPECT_EQ(WorkerLimits::of({}, capacity()).max_length, 1600);
  config::SchedulerOptions options;
  options.max_model_len = 700;
  EXPECT_EQ(WorkerLimits::of(options, capacity()).max_length, 700);
}

TEST(WorkerLimits, EverySlotHasATokenInAStep) {
  config::SchedulerOptions options;
  options.max_num_seqs = 20;
  EXPECT_EQ(WorkerLimits::of(options, capacity()).slots, 20);
  options.max_num_batched_tokens = 8;
  EXPECT_EQ(WorkerLimits::of(options, capacity()).slots, 8);
}

TEST(WorkerLimits, APromptIsLongWhenAStepDoesNotHoldFour) {
  const WorkerLimits limits = WorkerLimits::of({}, capacity());
  EXPECT_FALSE(limits.is_long(limits.step_tokens / 4));
  EXPECT_TRUE(limits.is_long(limits.step_tokens / 4 + 1));
  config::SchedulerOptions options;
  options.long_prefill_token_threshold = 9;
  EXPECT_TRUE(WorkerLimits::of(options, capacity()).is_long(10));
}

TEST(WorkerLimits, PositionsTakeWholeBlocks) {
  const WorkerLimits limits = WorkerLimits::of({}, capacity());
  EXPECT_EQ(limits.blocks_for(0), 0);
  EXPECT_EQ(limits.blocks_for(16), 1);
  EXPECT_EQ(limits.blocks_for(17), 2);
}

}  // namespace
}  // namespace troupe
