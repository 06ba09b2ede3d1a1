#include "model/plan_check.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/support/plans.h"

namespace troupe::model {
namespace {

using test::Commands;
using test::Plans;

constexpr SlotRef kPlanSlot{1, 7};

wire::Capacity plan_capacity() {
  wire::Capacity capacity;
  capacity.kv_blocks = 8;
  capacity.max_slots = 4;
  capacity.max_tokens_per_step = 100;
  capacity.max_model_len = 300;
  capacity.vocab_size = 50;
  capacity.max_drafts = capacity.max_proposed = 3;
  capacity.max_sampled = 6;
  return capacity;
}

class PlanCheckTest : public ::testing::Test {
 protected:
  Status admit() {
    const wire::RecordView view = plans.plan();
    Status status = check.admit(view, *view.as<wire::StepPlan>());
    if (!status.ok()) plans.take_back();
    return status;
  }
  void accepted() {
    const Status status = admit();
    ASSERT_TRUE(status.ok()) << status.message;
  }
  void refused(const std::string& part) {
    const Status status = admit();
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_EQ(status.code, Code::invalid_argument);
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  }
  // A sequence of three prompt tokens that has its first block and has run and sampled.
  void running() {
    plans.start(kPlanSlot, 3, 3)
        .ids(kPlanSlot, 0, {1, 2, 3})
        .blocks(kPlanSlot, 0, {5})
        .row(kPlanSlot, 0, 3, true);
    accepted();
  }

  Plans plans;
  Commands commands;
  PlanCheck check{plan_capacity()};
};

TEST_F(PlanCheckTest, AWholeLife) {
  running();
  plans.row(kPlanSlot, 3, 1, true);  // the token that the step before sampled, which is not committed yet
  accepted();
  plans.row(kPlanSlot, 4, 1, true);
  accepted();
  plans.finish(kPlanSlot)
      .start({1, 8}, 1, 1)
      .ids({1, 8}, 0, {4})
      .blocks({1, 8}, 0, {5})
      .row({1, 8}, 0, 1, true);
  accepted();
}

TEST_F(PlanCheckTest, PromptsComeInPieces) {
  plans.start(kPlanSlot, 70, 75)
      .ids(kPlanSlot, 0, std::vector<TokenId>(40, 1))
      .blocks(kPlanSlot, 0, {0})
      .row(kPlanSlot, 0, 40, false);
  accepted();
  plans.ids(kPlanSlot, 40, std::vector<TokenId>(35, 1)).row(kPlanSlot, 40, 24, false);
  accepted();
  plans.row(kPlanSlot, 64, 11, true);
  refused("1 blocks");
  plans.blocks(kPlanSlot, 1, {7}).row(kPlanSlot, 64, 11, true);
  accepted();
}

TEST_F(PlanCheckTest, ARefusedPlanChangesNothing) {
  running();
  plans.finish(kPlanSlot).start({1, 8}, 1, 1).row({1, 8}, 0, 1, true);
  refused("0 ids");
  plans.row(kPlanSlot, 3, 1, true);
  accepted();
}

TEST_F(PlanCheckTest, StepsCountUp) {
  running();
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    const wire::RecordView view = plans.plan(step);
    EXPECT_FALSE(check.admit(view, *view.as<wire::StepPlan>()).ok()) << step;
  }
  check.reset();
  plans.restart();
  accepted();
}

TEST_F(PlanCheckTest, SlotsExistAndAreFree) {
  plans.start({4, 1}, 1, 1);
  refused("slot 4");
  plans.start({std::numeric_limits<std::uint32_t>::max(), 1}, 1, 1);
  refused("no such slot");
  plans.finish({4, 1});
  refused("no such slot");
  plans.row({4, 1}, 0, 1, true);
  refused("no such slot");
  plans.ids({4, 1}, 0, {1});
  refused("no such slot");
  plans.blocks({4, 1}, 0, {1});
  refused("no such slot");
  running();
  plans.start({1, 8}, 1, 1);
  refused("generation 7 lives there");
}

TEST_F(PlanCheckTest, LateRecordsArePassedOver) {
  running();
  plans.finish({1, 6}).ids({1, 6}, 0, {1}).blocks({1, 6}, 0, {1}).row({1, 6}, 9, 1, true);
  accepted();
  plans.row({2, 1}, 0, 1, true);
  accepted();
  plans.row(kPlanSlot, 3, 1, true);
  accepted();
}

TEST_F(PlanCheckTest, LengthsFitTheModel) {
  plans.start(kPlanSlot, 0, 0);
  refused("prompt of 0");
  plans.start(kPlanSlot, -1, 5);
  refused("prompt of -1");
  plans.start(kPlanSlot, 5, 4);
  refused("in 4 tokens");
  plans.start(kPlanSlot, 5, 301);
  refused("at most 300");
}

TEST_F(PlanCheckTest, IdsAreInTheVocabularyAndInOrder) {
  for (const TokenId id :
       {-1, 50, std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()}) {
    plans.start(kPlanSlot, 3, 3).ids(kPlanSlot, 0, {1, id});
    refused("token id");
  }
  plans.start(kPlanSlot, 3, 3).ids(kPlanSlot, 1, {1});
  refused("missing");
  plans.start(kPlanSlot, 3, 3).ids(kPlanSlot, -1, {1});
  refused("missing");
  plans.start(kPlanSlot, 3, 3).ids(kPlanSlot, 0, {1, 2, 3, 4});
  refused("missing");
  running();
  plans.ids(kPlanSlot, 3, {9});  // what it sampled is not for the engine to say
  refused("missing");
}

TEST_F(PlanCheckTest, BlocksExistAndAreInOrder) {
  for (const BlockId block : {-1, 8, std::numeric_limits<BlockId>::max()}) {
    plans.start(kPlanSlot, 3, 3).blocks(kPlanSlot, 0, {block});
    refused("no block");
  }
  plans.start(kPlanSlot, 3, 3).blocks(kPlanSlot, 1, {1});
  refused("entries [1, 2)");
  plans.start(kPlanSlot, 3, 3).blocks(kPlanSlot, -1, {1});
  refused("entries [-1");
  plans.start(kPlanSlot, 3, 3).blocks(kPlanSlot, 0, {0, 1, 2, 3, 4, 5});
  refused("of 5");
  plans.start(kPlanSlot, 3, 3).blocks(kPlanSlot, 0, {0, 1}).blocks(kPlanSlot, 1, {4});
  accepted();
}

TEST_F(PlanCheckTest, RowsRunWhatIsThere) {
  running();
  plans.row(kPlanSlot, 3, 2, true);
  refused("4 ids");
  plans.row(kPlanSlot, -1, 1, true);
  refused("[-1, 0)");
  plans.row(kPlanSlot, 3, 0, true);
  refused("[3, 3)");
  plans.row(kPlanSlot, 3, -1, true);
  refused("[3, 2)");
  plans.row(kPlanSlot, 3, std::numeric_limits<std::int32_t>::max(), true);
  refused("positions end at 300");
  plans.row(kPlanSlot, 3, 1, true).row(kPlanSlot, 3, 1, true);
  refused("two rows");
  plans.row(kPlanSlot, 2, 1, true);
  refused("4 tokens are known");
  plans.start({2, 1}, 3, 3).ids({2, 1}, 0, {1, 2}).blocks({2, 1}, 0, {0}).row({2, 1}, 0, 2, true);
  refused("3 tokens are known");
}

TEST_F(PlanCheckTest, AStepHasABudget) {
  plans.start(kPlanSlot, 101, 101)
      .ids(kPlanSlot, 0, std::vector<TokenId>(101, 1))
      .blocks(kPlanSlot, 0, {0, 1})
      .row(kPlanSlot, 0, 101, true);
  refused("more than 100 tokens");
}

TEST_F(PlanCheckTest, ARowMaySampleAgain) {
  const SlotRef slot{0, 1};
  plans.start(slot, 3, 3).ids(slot, 0, {1, 2, 3}).blocks(slot, 0, {0}).row(slot, 0, 3, true);
  ASSERT_TRUE(admit().ok());
  plans.row(slot, 3, 1, true);
  ASSERT_TRUE(admit().ok());
  plans.again_row(slot, 2, 1);
  EXPECT_TRUE(admit().ok()) << "the two that were sampled are forgotten";
  plans.row(slot, 3, 1, true);
  EXPECT_TRUE(admit().ok());
  plans.again_row(slot, 1, 1);
  refused("a row that ends at 2 samples, but");
}

TEST_F(PlanCheckTest, RowsFromTheLastTokenStayWithinWhatThePlanAllowsFor) {
  const auto start = [&](SlotRef slot, int max_tokens) {
    plans.start(slot, 3, 3, {}, {}, {}, max_tokens).ids(slot, 0, {1, 2, 3}).blocks(slot, 0, {5});
  };
  start(kPlanSlot, 3);
  refused("at most 3 tokens, of which 3 are known");
  start(kPlanSlot, 301);
  refused("positions end at 300");
  start(kPlanSlot, 40);
  accepted();
  plans.row_from_last(kPlanSlot, 3, 1);
  refused("it has sampled none");
  plans.row(kPlanSlot, 0, 3, true);
  accepted();
  plans.row_from_last(kPlanSlot, 3, 5);
  refused("4 draft tokens; at most 3 are made");
  plans.row_from_last(kPlanSlot, 4, 1);
  refused("it has at most 4 of 40 ids");
  plans.row_from_last(kPlanSlot, 2, 1);
  refused("it has at most 4 of 40 ids");
  plans.row_from_last(kPlanSlot, 3, 4);
  accepted();
  plans.row_from_last(kPlanSlot, 7, 4);
  accepted();
  plans.row(kPlanSlot, 11, 1, true);
  refused("the worker's to know");
  for (int position = 11; position < 36; ++position) {
    plans.row_from_last(kPlanSlot, position, 1);
    accepted();
  }
  plans.row_from_last(kPlanSlot, 36, 4);
  refused("of 40 ids");
  plans.row_from_last(kPlanSlot, 36, 3);
  accepted();

  const SlotRef other{2, 1};
  start(other, 40);
  plans.row(other, 0, 3, true);
  accepted();
  plans.row_from_last(other, 3, 4).row_from_last(kPlanSlot, 36, 3);
  refused("more than 6 tokens are sampled in one step");
}

TEST_F(PlanCheckTest, RowsFromTheLastTokenMayWaitForMasksAndSampleAgain) {
  plans.start(kPlanSlot, 3, 3, {}, {}, {}, 40, 4);
  refused("no 4 draft tokens to say; at most 3");
  plans.start(kPlanSlot, 3, 3, {}, {}, {}, 0, 1);
  refused("no 1 draft tokens to say");
  plans.start(kPlanSlot, 3, 3, {}, {}, {}, 40, 0).ids(kPlanSlot, 0, {1, 2, 3}).blocks(kPlanSlot, 0, {5});
  plans.gated_row(kPlanSlot, 0, 3);
  accepted();
  plans.row_from_last(kPlanSlot, 3, 4, wire::kGated);
  refused("its results say no draft tokens");
  plans.finish(kPlanSlot);
  accepted();
  plans.start(kPlanSlot, 3, 3, {}, {}, {}, 40, 3).ids(kPlanSlot, 0, {1, 2, 3}).blocks(kPlanSlot, 0, {5});
  plans.gated_row(kPlanSlot, 0, 3);
  accepted();
  plans.row_from_last(kPlanSlot, 3, 4, wire::kGated);
  accepted();
  plans.row_from_last(kPlanSlot, 3, 2, wire::kGated | wire::kAgain);
  refused("not with 2 tokens");
  plans.row_from_last(kPlanSlot, 1, 1, wire::kGated | wire::kAgain);
  refused("of 40 ids");
  plans.row_from_last(kPlanSlot, 2, 1, wire::kGated | wire::kAgain);
  accepted();
  plans.row_from_last(kPlanSlot, 4, 1);
  refused("it has at most 4 of 40 ids");
  plans.row_from_last(kPlanSlot, 3, 1);
  accepted();
}

TEST_F(PlanCheckTest, UnknownFlagsAreRefusedAndWaitingWithoutSampling) {
  const auto status = [&](std::uint32_t flags) {
    wire::RecordWriter<wire::StepPlan> writer;
    writer.begin(1);
    const auto rows = writer.array(std::vector<wire::PlanRow>{{kPlanSlot, 0, 1, flags, 0}});
    writer.record().step = 1;
    writer.record().rows = rows;
    wire::RecordView view;
    EXPECT_TRUE(wire::RecordView::open(writer.finish(), view));
    return check.admit(view, *view.as<wire::StepPlan>());
  };
  EXPECT_NE(status(16).message.find("flags 16 are not offered"), std::string::npos);
  EXPECT_NE(status(wire::kAgain).message.find("does not sample samples again"), std::string::npos);
  EXPECT_NE(status(wire::kSamples | 16).message.find("not offered"), std::string::npos);
  EXPECT_NE(status(wire::kGated).message.find("does not sample"), std::string::npos);
  EXPECT_TRUE(status(wire::kSamples | wire::kGated).ok()) << "of a sequence that has gone";
  plans.restart();
  plans.gated_row({kPlanSlot.slot, 7}, 0, 1).gated_row({kPlanSlot.slot, 8}, 0, 1);
  const wire::RecordView view = plans.plan(2);
  EXPECT_NE(check.admit(view, *view.as<wire::StepPlan>()).message.find("two rows of one slot wait"),
            std::string::npos);
}

TEST_F(PlanCheckTest, SpansLieInTheRecord) {
  wire::RecordWriter<wire::StepPlan> writer;
  for (int which = 0; which < 5; ++which) {
    writer.begin(1);
    wire::StepPlan& plan = writer.record();
    plan.step = 1;
    if (which == 0) plan.finished = {8000, 1};
    if (which == 1) plan.started = {0, 1};
    if (which == 2) plan.tokens = {17, 1};
    if (which == 3) plan.blocks = {16, 1u << 31};
    if (which == 4) plan.rows = {~0u & ~7u, 1};
    wire::RecordView view;
    ASSERT_TRUE(wire::RecordView::open(writer.finish(), view));
    EXPECT_FALSE(check.admit(view, *view.as<wire::StepPlan>()).ok()) << which;
  }
}

TEST_F(PlanCheckTest, ParametersAreNumbersInRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto bad = [&](auto set) {
    wire::Sampling sampling;
    set(sampling);
    plans.start(kPlanSlot, 1, 1, sampling);
    EXPECT_FALSE(admit().ok());
  };
  for (const float value : {nan, infinity, -1.0f}) {
    bad([&](wire::Sampling& s) { s.temperature = value; });
    bad([&](wire::Sampling& s) { s.top_p = value; });
    bad([&](wire::Sampling& s) { s.min_p = value; });
    bad([&](wire::Sampling& s) { s.repetition_penalty = value; });
  }
  for (const float value : {nan, infinity}) {
    bad([&](wire::Sampling& s) { s.presence_penalty = value; });
    bad([&](wire::Sampling& s) { s.frequency_penalty = value; });
  }
  bad([](wire::Sampling& s) { s.top_p = 0; });
  bad([](wire::Sampling& s) { s.top_p = 1.5f; });
  bad([](wire::Sampling& s) { s.min_p = 1.5f; });
  bad([](wire::Sampling& s) { s.repetition_penalty = 0; });
  bad([](wire::Sampling& s) { s.top_k = -1; });
  bad([](wire::Sampling& s) { s.min_tokens = -1; });
  bad([](wire::Sampling& s) { s.logprobs = 21; });
  bad([](wire::Sampling& s) { s.prompt_logprobs = -2; });
  plans.start(kPlanSlot, 1, 1, {}, {50});
  refused("stop id 50");
  plans.start(kPlanSlot, 1, 1, {}, {}, {{-1, 1.0f}});
  refused("token -1");
  plans.start(kPlanSlot, 1, 1, {}, {}, {{1, nan}});
  refused("token 1");
  plans.start(kPlanSlot, 1, 1, {}, std::vector<TokenId>(1 + kMaxSamplingBytes / 4, 1));
  refused("do not fit");
}

TEST_F(PlanCheckTest, PromptLogprobsNeedTheNextId) {
  wire::Sampling scored;
  scored.prompt_logprobs = 0;
  plans.start(kPlanSlot, 4, 4, scored)
      .ids(kPlanSlot, 0, {1, 2})
      .blocks(kPlanSlot, 0, {0})
      .row(kPlanSlot, 0, 2, false);
  refused("without the id");
  plans.start(kPlanSlot, 4, 4, scored)
      .ids(kPlanSlot, 0, {1, 2, 3})
      .blocks(kPlanSlot, 0, {0})
      .row(kPlanSlot, 0, 2, false);
  accepted();
}

TEST_F(PlanCheckTest, ResultsFitARecord) {
  wire::Capacity wide = plan_capacity();
  wide.max_tokens_per_step = wide.max_model_len = 10'000;
  wide.kv_blocks = 200;
  wide.max_logprobs = 40;
  std::vector<BlockId> blocks(157);
  for (int i = 0; i < 157; ++i) blocks[static_cast<std::size_t>(i)] = i;
  for (const auto& [top, fits] : {std::pair{40, false}, std::pair{20, true}, std::pair{0, true}}) {
    PlanCheck checked(wide);
    wire::Sampling scored;
    scored.prompt_logprobs = top;
    plans.start(kPlanSlot, 10'000, 10'000, scored)
        .ids(kPlanSlot, 0, std::vector<TokenId>(10'000, 1))
        .blocks(kPlanSlot, 0, blocks);
    plans.row(kPlanSlot, 0, 9'999, false);
    const wire::RecordView view = plans.plan(1);
    EXPECT_EQ(checked.admit(view, *view.as<wire::StepPlan>()).ok(), fits) << top;
  }
}

TEST_F(PlanCheckTest, ARowMayWantAsManyLogprobsAsAResultHolds) {
  wire::Capacity wide = plan_capacity();
  wide.max_logprobs = wide.vocab_size = wire::kMostTopLogprobs;
  for (const int rows : {1, 2}) {
    PlanCheck checked(wide);
    for (int i = 0; i < rows; ++i) {
      const SlotRef slot{static_cast<std::uint32_t>(i), 1};
      plans.start(slot, 1, 1, {.logprobs = wire::kMostTopLogprobs}).ids(slot, 0, {1}).blocks(slot, 0, {i});
      plans.row(slot, 0, 1, true);
    }
    const wire::RecordView view = plans.plan(1);
    EXPECT_EQ(checked.admit(view, *view.as<wire::StepPlan>()).ok(), rows == 1) << rows;
  }
}

TEST_F(PlanCheckTest, LateRowsThatSampleAreAnsweredInTheResultToo) {
  wire::Capacity wide = plan_capacity();
  wide.max_tokens_per_step = 100'000;
  wide.max_drafts = 0;
  wide.max_logprobs = wide.vocab_size = wire::kMostTopLogprobs;
  constexpr SlotRef kScored{0, 1};
  constexpr std::int32_t kTop = 260'000;
  constexpr std::size_t kRow = sizeof(wire::ResultRow) + sizeof(TokenId);
  constexpr std::size_t kTaken =
      sizeof(wire::StepResult) + kRow + sizeof(wire::TokenLogprobs) + kTop * sizeof(wire::Logprob);
  const auto most = static_cast<int>((wire::kMaxResultBytes - kTaken) / kRow);
  for (const auto& [rows, fits] : {std::pair{most, false}, std::pair{most - 100, true}}) {
    PlanCheck checked(wide);
    plans.start(kScored, 1, 1, {.logprobs = kTop}).ids(kScored, 0, {1}).blocks(kScored, 0, {0});
    plans.row(kScored, 0, 1, true);
    for (int i = 0; i < rows; ++i) plans.row(kPlanSlot, 0, 1, true);
    const wire::RecordView view = plans.plan(1);
    EXPECT_EQ(checked.admit(view, *view.as<wire::StepPlan>()).ok(), fits) << rows;
  }
}

TEST_F(PlanCheckTest, CommandsCopyBetweenBlocksThatExist) {
  const auto admit = [&](const std::vector<wire::BlockCopy>& copies, std::uint64_t id) {
    const wire::RecordView view = commands.copy(copies, id);
    return check.admit(view, *view.as<wire::CacheCommand>()).ok();
  };
  EXPECT_FALSE(admit({{0, 8}}, 1));
  EXPECT_FALSE(admit({{-1, 0}}, 1));
  EXPECT_FALSE(admit({{0, 1}, {2, 1}}, 1));
  EXPECT_FALSE(admit({{0, 1}, {1, 2}}, 1));
  EXPECT_FALSE(admit({{3, 3}}, 1));
  EXPECT_FALSE(admit({{0, 1}}, 2));
  EXPECT_TRUE(admit({{0, 1}, {0, 2}}, 1));
  EXPECT_FALSE(admit({{0, 1}}, 1));
  EXPECT_TRUE(admit({}, 2));
}

}  // namespace
}  // namespace troupe::model
