#include "model/echo_executor.h"

#include <gtest/gtest.h>

#include "model/support/engine.h"

namespace troupe::model {
namespace {

using test::Ask;
using test::Commands;
using test::Engine;
using test::Masks;
using test::Plans;

constexpr SlotRef kEchoSlot{0, 1};

wire::Capacity echo_capacity() {
  wire::Capacity capacity;
  capacity.kv_blocks = 16;
  capacity.max_slots = 4;
  capacity.max_tokens_per_step = 64;
  capacity.max_model_len = 256;
  capacity.vocab_size = 1000;
  return capacity;
}

class EchoExecutorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Executor> executor = make_echo_executor(echo_capacity());
  Plans plans;
  Commands commands;
  std::vector<std::byte> out;

  bool poll() {
    const auto got = executor->poll(out, Clock::now());
    EXPECT_TRUE(got.ok());
    return *got;
  }
  const wire::StepResult* result() {
    view = test::open_view(out);
    return view.as<wire::StepResult>();
  }
  wire::RecordView view;
};

TEST_F(EchoExecutorTest, RepeatsThePrompt) {
  const auto answers = Engine(*executor).run({
      {.prompt = {7, 8, 9}, .outputs = 7, .blocks = {0}},
      {.prompt = {5}, .outputs = 3, .chunk = 1, .blocks = {1}, .starts_at = 2},
  });
  EXPECT_EQ(answers[0].tokens, (std::vector<TokenId>{7, 8, 9, 7, 8, 9, 7}));
  EXPECT_EQ(answers[1].tokens, (std::vector<TokenId>{5, 5, 5}));
}

TEST_F(EchoExecutorTest, GoesOnAfterARecompute) {
  const auto answers = Engine(*executor).run(
      {{.prompt = {1, 2, 3}, .outputs = 8, .blocks = {0}, .second = {3}, .recompute_after = 4}});
  EXPECT_EQ(answers[0].tokens, (std::vector<TokenId>{1, 2, 3, 1, 2, 3, 1, 2}));
}

TEST_F(EchoExecutorTest, TwoStepsAreInFlightAndNoMore) {
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {4}).blocks(kEchoSlot, 0, {0}).row(kEchoSlot, 0, 1, true);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(executor->submit(plans.row(kEchoSlot, 1, 1, true).plan()).ok());
  EXPECT_EQ(executor->submit(plans.row(kEchoSlot, 2, 1, true).plan()).code, Code::overloaded);
  ASSERT_TRUE(poll());
  EXPECT_EQ(result()->step, 1u);
  ASSERT_TRUE(executor->submit(plans.row(kEchoSlot, 2, 1, true).plan(3)).ok());
  ASSERT_TRUE(poll());
  ASSERT_TRUE(poll());
  EXPECT_EQ(result()->step, 3u);
  EXPECT_GE(result()->finished_ns, result()->started_ns);
  EXPECT_FALSE(poll());
}

TEST_F(EchoExecutorTest, RowsOfAnotherGenerationAreAnsweredWithAnError) {
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {4}).blocks(kEchoSlot, 0, {0});
  plans.row({0, 9}, 0, 1, true).row(kEchoSlot, 0, 1, true).row({1, 1}, 0, 1, false);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(poll());
  const auto rows = (result(), view.array(result()->rows));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].error, wire::RowError::no_such_slot);
  EXPECT_EQ(rows[0].count, 0);
  EXPECT_EQ(rows[1].error, wire::RowError::none);
  EXPECT_EQ(view.array(result()->tokens)[static_cast<std::size_t>(rows[1].first)], 4);
}

TEST_F(EchoExecutorTest, CommandsKeepTheirPlaceBetweenPlans) {
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(executor->submit(commands.copy({{0, 1}})).ok());
  ASSERT_TRUE(executor->submit(plans.after(1).plan()).ok());
  ASSERT_TRUE(poll());
  EXPECT_NE(result(), nullptr);
  ASSERT_TRUE(poll());
  EXPECT_EQ(result(), nullptr);
  EXPECT_EQ(test::open_view(out).as<wire::CacheDone>()->failed, 0u);
  ASSERT_TRUE(poll());
  EXPECT_EQ(result()->step, 2u);
}

TEST_F(EchoExecutorTest, LogprobsAreThoseOfCertainty) {
  const auto answers = Engine(*executor).run(
      {{.prompt = {7, 8}, .outputs = 2, .sampling = {.logprobs = 1, .prompt_logprobs = 0}, .blocks = {0}}});
  EXPECT_EQ(answers[0].logprobs, (std::vector<float>{0, 0}));
  EXPECT_EQ(answers[0].prompt_logprobs.at(1).token, 8);
  EXPECT_EQ(answers[0].top.at(2)[0].token, 7);
  EXPECT_TRUE(answers[0].top.at(1).empty());
}

TEST_F(EchoExecutorTest, ResetForgetsSequencesAndQueues) {
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {4}).blocks(kEchoSlot, 0, {0}).row(kEchoSlot, 0, 1, true);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  executor->reset(1);
  EXPECT_FALSE(poll());
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {6}).blocks(kEchoSlot, 0, {0}).row(kEchoSlot, 0, 1, true);
  ASSERT_TRUE(executor->submit(plans.plan(1)).ok());
  ASSERT_TRUE(poll());
  EXPECT_EQ((result(), view.array(result()->tokens))[0], 6);
}

TEST_F(EchoExecutorTest, AGatedStepAndThoseBehindItWaitForTheMasks) {
  constexpr SlotRef kOther{1, 1};
  Masks masks;
  for (const SlotRef slot : {kEchoSlot, kOther}) {
    plans.start(slot, 1, 1).ids(slot, 0, {4}).blocks(slot, 0, {static_cast<BlockId>(slot.slot)});
  }
  ASSERT_TRUE(executor->submit(plans.gated_row(kEchoSlot, 0, 1).row(kOther, 0, 1, true).plan()).ok());
  ASSERT_TRUE(executor->submit(plans.gated_row(kEchoSlot, 1, 1).row(kOther, 1, 1, true).plan()).ok());
  EXPECT_FALSE(executor->waits_for_record()) << "the layers have not run";
  EXPECT_FALSE(poll());
  EXPECT_TRUE(executor->waits_for_record());
  ASSERT_TRUE(executor->submit(commands.copy({{5, 6}})).ok());
  EXPECT_FALSE(executor->waits_for_record());
  ASSERT_TRUE(poll());
  EXPECT_EQ(result(), nullptr) << "a copy may run meanwhile";
  EXPECT_FALSE(poll());

  ASSERT_TRUE(executor->submit(masks.all(kEchoSlot).masks(2)).ok()) << "a later step's may come first";
  EXPECT_FALSE(poll());
  ASSERT_TRUE(executor->submit(masks.allow(kEchoSlot, {2, 7}).masks(1)).ok());
  EXPECT_FALSE(executor->waits_for_record());
  ASSERT_TRUE(poll());
  ASSERT_EQ(result()->step, 1u);
  EXPECT_EQ(view.array(result()->tokens)[0], 7) << "the next id that is allowed";
  EXPECT_EQ(view.array(result()->tokens)[1], 4);
  ASSERT_TRUE(poll());
  ASSERT_EQ(result()->step, 2u);
  EXPECT_EQ(view.array(result()->tokens)[0], 4);
  EXPECT_FALSE(executor->waits_for_record());
}

TEST_F(EchoExecutorTest, AResetForgetsTheStepThatWaits) {
  Masks masks;
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {4}).blocks(kEchoSlot, 0, {0}).gated_row(kEchoSlot, 0, 1);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  EXPECT_FALSE(poll());
  executor->reset(1);
  EXPECT_FALSE(executor->waits_for_record());
  EXPECT_EQ(executor->submit(masks.all(kEchoSlot).masks(1)).code, Code::invalid_argument);
  plans.restart();
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {6}).blocks(kEchoSlot, 0, {0}).row(kEchoSlot, 0, 1, true);
  ASSERT_TRUE(executor->submit(plans.plan()).ok());
  ASSERT_TRUE(poll());
  EXPECT_EQ((result(), view.array(result()->tokens))[0], 6);
}

TEST_F(EchoExecutorTest, ALateGatedRowNeedsItsMaskToo) {
  Masks masks;
  plans.start(kEchoSlot, 1, 1).ids(kEchoSlot, 0, {4}).blocks(kEchoSlot, 0, {0}).row(kEchoSlot, 0, 1, true);
  ASSERT_TRUE(executor->submit(plans.gated_row({3, 9}, 0, 1).plan()).ok());
  EXPECT_FALSE(poll());
  ASSERT_TRUE(executor->submit(masks.all({3, 9}).masks(1)).ok());
  ASSERT_TRUE(poll());
  const auto rows = (result(), view.array(result()->rows));
  EXPECT_EQ(rows[0].error, wire::RowError::none);
  EXPECT_EQ(rows[1].error, wire::RowError::no_such_slot);
}

TEST_F(EchoExecutorTest, OtherRecordsAreRefused) {
  wire::RecordWriter<wire::Inventory> inventory;
  inventory.begin(1);
  wire::RecordView record;
  ASSERT_TRUE(wire::RecordView::open(inventory.finish(), record));
  EXPECT_EQ(executor->submit(record).code, Code::invalid_argument);
}

}  // namespace
}  // namespace troupe::model
