#include "model/cuda/sequence_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "model/stage.h"
#include "model/support/plans.h"

namespace troupe::model {
namespace {

using test::Plans;

constexpr SlotRef kA{0, 1}, kB{1, 1};

class SequenceTableTest : public ::testing::Test {
 protected:
  void apply() {
    const wire::RecordView view = plans.plan();
    table.apply(view, *view.as<wire::StepPlan>(), batch);
  }
  void commit(const std::vector<TokenId>& tokens) {
    std::vector<kernels::SampleResult> results;
    for (const TokenId token : tokens) results.push_back(kernels::SampleResult{.token = token});
    table.commit(batch, results);
  }

  Plans plans;
  WorkerSequences table{4};
  StepBatch batch;
};

TEST_F(SequenceTableTest, RowsOfSeveralSequencesLieOneAfterTheOther) {
  plans.start(kA, 3, 3).ids(kA, 0, {10, 11, 12}).blocks(kA, 0, {5});
  plans.start(kB, 70, 70).ids(kB, 0, std::vector<TokenId>(70, 20)).blocks(kB, 0, {6, 7});
  plans.row(kB, 0, 66, false).row(kA, 0, 3, true);
  apply();
  ASSERT_EQ(batch.rows(), 69);
  EXPECT_EQ(batch.tokens[65], 20);
  EXPECT_EQ(batch.tokens[66], 10);
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_EQ(batch.sequences[0].blocks[1], 7);
  EXPECT_EQ(batch.sequences[1].row, 66);
  EXPECT_EQ(batch.sequences[1].tokens, 3);
  EXPECT_EQ(batch.sample_rows, std::vector<std::int32_t>{68});
  EXPECT_EQ(batch.outcomes[0].slot, kA);
  EXPECT_EQ(batch.outcomes[0].position, 3);
}

TEST_F(SequenceTableTest, ADecodeRowRunsTheTokenThatWasSampled) {
  plans.start(kA, 2, 2).ids(kA, 0, {10, 11}).blocks(kA, 0, {5}).row(kA, 0, 2, true);
  apply();
  EXPECT_EQ(batch.samples[0].position, 0u);
  commit({42});
  plans.row(kA, 2, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{42});
  EXPECT_EQ(batch.sequences[0].position, 2);
  EXPECT_EQ(batch.samples[0].position, 1u);
  EXPECT_EQ(batch.samples[0].prompt_tokens, 2);
  EXPECT_EQ(batch.samples[0].known_tokens, 3);
  EXPECT_EQ(batch.samples[0].tokens[2], 42);
}

// A device with its own queue: the next plan is applied while the step that samples is still out.
TEST_F(SequenceTableTest, ATokenThatIsStillOutIsUnsampled) {
  plans.start(kA, 2, 2).ids(kA, 0, {10, 11}).blocks(kA, 0, {5}).row(kA, 0, 2, true);
  apply();
  StepBatch first = batch;
  plans.row(kA, 2, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{kUnsampled});
  EXPECT_EQ(batch.samples[0].known_tokens, 3);
  EXPECT_EQ(batch.slots, std::vector<std::uint32_t>{0});
  const StepBatch second = batch;
  batch = first;
  commit({42});
  plans.row(kA, 4, 1, true);
  batch = second;
  commit({43});
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{kUnsampled}) << "4 has not been sampled, 3 has";
  EXPECT_EQ(batch.samples[0].tokens[2], 42);
  EXPECT_EQ(batch.samples[0].tokens[3], 43);
}

TEST_F(SequenceTableTest, ARowThatSamplesAgainForgetsWhatWasSampledBehindIt) {
  plans.start(kA, 2, 2).ids(kA, 0, {10, 11}).blocks(kA, 0, {5}).row(kA, 0, 2, true);
  apply();
  commit({42});
  plans.row(kA, 2, 1, true);
  apply();
  commit({43});
  plans.again_row(kA, 1, 1);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{11});
  EXPECT_EQ(batch.samples[0].known_tokens, 2);
  EXPECT_EQ(batch.samples[0].position, 0u);
  commit({50});
  plans.row(kA, 2, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{50});
}

TEST_F(SequenceTableTest, ResultsOfATenantThatHasGoneArePassedOver) {
  plans.start(kA, 1, 1).ids(kA, 0, {10}).blocks(kA, 0, {5}).row(kA, 0, 1, true);
  apply();
  const StepBatch first = batch;
  const SlotRef next{0, 2};
  plans.finish(kA).start(next, 2, 2).ids(next, 0, {20, 21}).blocks(next, 0, {6}).row(next, 0, 2, true);
  apply();
  EXPECT_FALSE(table.holds(kA));
  EXPECT_TRUE(table.holds(next));
  EXPECT_EQ(batch.samples[0].tokens[1], 21);
  const StepBatch second = batch;
  batch = first;
  commit({42});
  EXPECT_EQ(second.samples[0].tokens[1], 21);
  plans.row(next, 2, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{kUnsampled});
}

TEST_F(SequenceTableTest, ARowMayBeginWithKnownTokensAndEndWithOneThatIsOut) {
  plans.start(kA, 2, 2).ids(kA, 0, {10, 11}).blocks(kA, 0, {5}).row(kA, 0, 2, true);
  apply();
  plans.row(kA, 1, 2, true);
  apply();
  EXPECT_EQ(batch.tokens, (std::vector<TokenId>{11, kUnsampled}));
}

TEST_F(SequenceTableTest, TheLastBlockIsTheOneThatTheLastRowWritesTo) {
  plans.start(kA, 70, 70).ids(kA, 0, std::vector<TokenId>(70, 20)).blocks(kA, 0, {5, 6, 7});
  plans.row(kA, 0, 64, false);
  apply();
  EXPECT_EQ(batch.last_blocks, std::vector<BlockId>{5});
  plans.row(kA, 64, 6, true);
  apply();
  EXPECT_EQ(batch.last_blocks, std::vector<BlockId>{6});
  for (int position = 70; position < 129; ++position) {
    plans.row(kA, position, 1, true);
    apply();
    ASSERT_EQ(batch.last_blocks, std::vector<BlockId>{position < 128 ? 6 : 7}) << position;
  }
  plans.blocks(kA, 2, {9}).row(kA, 129, 1, true);
  apply();
  EXPECT_EQ(batch.last_blocks, std::vector<BlockId>{9}) << "replaced, for instance by a copy";
  const SlotRef next{0, 2};
  plans.finish(kA)
      .start(next, 130, 130)
      .ids(next, 0, std::vector<TokenId>(130, 20))
      .blocks(next, 0, {1, 2, 3});
  plans.row(next, 0, 130, true);
  apply();
  EXPECT_EQ(batch.last_blocks, std::vector<BlockId>{3}) << "not the last tenant's";
}

TEST_F(SequenceTableTest, AfterARecomputeTheOutputGoesOnCounting) {
  plans.start(kA, 2, 4).ids(kA, 0, {10, 11, 42, 43}).blocks(kA, 0, {5}).row(kA, 0, 4, true);
  apply();
  EXPECT_EQ(batch.samples[0].position, 2u);
  EXPECT_EQ(batch.samples[0].prompt_tokens, 2);
  EXPECT_EQ(batch.outcomes[0].position, 4);
}

TEST_F(SequenceTableTest, StopIdsAreBannedUntilMinTokens) {
  plans.start(kA, 1, 1, {.min_tokens = 1}, {7, 8}, {{3, 0.5f}})
      .ids(kA, 0, {1})
      .blocks(kA, 0, {0})
      .row(kA, 0, 1, true);
  apply();
  EXPECT_EQ(batch.samples[0].banned_count, 2);
  EXPECT_EQ(batch.samples[0].banned[1], 8);
  EXPECT_EQ(batch.samples[0].bias_count, 1);
  EXPECT_EQ(batch.samples[0].bias[0].token, 3);
  commit({2});
  plans.row(kA, 1, 1, true);
  apply();
  EXPECT_EQ(batch.samples[0].banned_count, 0);
  EXPECT_EQ(batch.samples[0].bias_count, 1);
}

TEST_F(SequenceTableTest, EveryPromptTokenButTheFirstIsScoredOnce) {
  plans.start(kA, 5, 7, {.prompt_logprobs = 4}).ids(kA, 0, {10, 11, 12, 13, 14, 15, 16}).blocks(kA, 0, {0});
  plans.row(kA, 0, 2, false);
  apply();
  ASSERT_EQ(batch.scores.size(), 2u);
  EXPECT_EQ(batch.scores[1].token, 12);
  EXPECT_EQ(batch.scores[1].logprobs, 4);
  EXPECT_EQ(batch.score_rows[1], 1);
  EXPECT_EQ(batch.scored[1].position, 2);
  plans.row(kA, 2, 5, true);
  apply();
  ASSERT_EQ(batch.scores.size(), 2u) << "tokens 13 and 14; 15 and 16 are output";
  EXPECT_EQ(batch.scores[1].token, 14);
  EXPECT_EQ(batch.score_rows[0], 0);
}

TEST_F(SequenceTableTest, ASlotsNextTenantInheritsNothing) {
  plans.start(kA, 2, 2, {.min_tokens = 9}, {7}, {{3, 1.0f}})
      .ids(kA, 0, {10, 11})
      .blocks(kA, 0, {5})
      .row(kA, 0, 2, true);
  apply();
  commit({42});
  const SlotRef next{0, 2};
  plans.finish(kA)
      .start(next, 1, 1)
      .ids(next, 0, {9})
      .blocks(next, 0, {3})
      .row(kA, 3, 1, true)
      .row(next, 0, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{9});
  ASSERT_EQ(batch.outcomes.size(), 2u);
  EXPECT_EQ(batch.outcomes[0].sample, -1);
  EXPECT_EQ(batch.outcomes[1].sample, 0);
  EXPECT_EQ(batch.samples[0].banned_count, 0);
  EXPECT_EQ(batch.samples[0].bias_count, 0);
  EXPECT_EQ(batch.sequences[0].blocks[0], 3);
}

TEST_F(SequenceTableTest, ARowThatFailedCountsAsTokenZero) {
  plans.start(kA, 1, 1).ids(kA, 0, {10}).blocks(kA, 0, {5}).row(kA, 0, 1, true);
  apply();
  const kernels::SampleResult failed{.token = 99, .error = kernels::SampleError::not_finite};
  table.commit(batch, std::span(&failed, 1));
  plans.row(kA, 1, 1, true);
  apply();
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{0});
}

// A device whose memory is not the host's: what an op would read are copies made at put().
struct FarDevice {
  static constexpr const char* name = "far";
  static bool available() { return true; }
  void* alloc(std::size_t bytes) { return std::calloc(1, bytes); }
  void free(void* memory) { std::free(memory); }
  void upload(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  void sync() {}
  std::string describe() const { return name; }
};

TEST(Stage, CopiesToAFarDeviceAndNotToTheCpu) {
  FarDevice far;
  auto stage = Stage<FarDevice>::make(far, 256);
  ASSERT_TRUE(stage.ok());
  std::vector<int> values{1, 2, 3};
  const int* first = stage->put(values.data(), values.size());
  const int* second = stage->put(values.data(), 1);
  values[0] = 9;
  EXPECT_EQ(first[0], 1);
  EXPECT_EQ(first[2], 3);
  EXPECT_NE(first, second);
  EXPECT_EQ(stage->put(values.data(), 0), nullptr);
  stage->reset();
  EXPECT_EQ(stage->put(values.data(), 1), first);

  Cpu cpu({.threads = 1, .pin = false});
  EXPECT_EQ(Stage<Cpu>::make(cpu, 0)->put(values.data(), 3), values.data());
}

TEST(DerivingTable, SaysOfEverySequenceWhatTheDraftLayerNeeds) {
  WorkerSequences table(4, {}, nullptr, {{1, 2, 4}, 16});
  Plans plans;
  StepBatch batch;
  const auto apply = [&] {
    const wire::RecordView view = plans.plan();
    table.apply(view, *view.as<wire::StepPlan>(), batch);
  };
  plans.start(kB, 3, 3, {.min_tokens = 5}, {}, {}, 50).ids(kB, 0, {10, 11, 12}).blocks(kB, 0, {5});
  plans.row(kB, 0, 2, false);
  apply();
  ASSERT_EQ(batch.drafting.size(), 1u);
  EXPECT_EQ(batch.drafting[0].slot, 1);
  EXPECT_EQ(batch.drafting[0].sample, -1) << "its prompt goes on";
  EXPECT_EQ(batch.drafting[0].drafts, 0);
  EXPECT_EQ(batch.drafting[0].room, 64);
  EXPECT_EQ(batch.drafting[0].max_tokens, 50);
  EXPECT_EQ(batch.drafting[0].min_tokens, 5);
  plans.start(kA, 2, 2).ids(kA, 0, {10, 11}).blocks(kA, 0, {6}).row(kA, 0, 2, true).row(kB, 2, 1, true);
  apply();
  ASSERT_EQ(batch.drafting.size(), 2u);
  EXPECT_EQ(batch.drafting[0].sample, 0);
  EXPECT_EQ(batch.drafting[0].drafts, 0) << "it has no rows that verify drafts";
  EXPECT_EQ(batch.drafting[1].sample, 1);
  EXPECT_EQ(batch.drafting[1].derived, -1);
  EXPECT_EQ(batch.drafting[1].drafts, kMostDrafts);
  plans.row(kA, 2, 1, true).row_from_last(kB, 3, 3);
  apply();
  EXPECT_EQ(batch.width, 4);
  EXPECT_EQ(batch.drafting[0].sample, 0);
  EXPECT_EQ(batch.drafting[1].sample, 4);
  EXPECT_EQ(batch.drafting[1].derived, 0);
  EXPECT_EQ(batch.drafting[1].drafts, 2);
  EXPECT_TRUE(batch.proposing.empty());
}

TEST(DerivingTable, SaysWhichSequencesPropose) {
  WorkerSequences table(4, {}, nullptr, {{1, 2, 4}, 16});
  StepBatch batch;
  Plans plans;
  const auto apply = [&] {
    const wire::RecordView view = plans.plan();
    table.apply(view, *view.as<wire::StepPlan>(), batch);
  };
  const auto commit = [&](const std::vector<kernels::Yield>& yields, TokenId token) {
    const std::vector<kernels::SampleResult> results(batch.samples.size(),
                                                     kernels::SampleResult{.token = token});
    table.resolve(batch, yields, results);
    table.commit(batch, results);
  };
  plans.start(kA, 2, 2, {}, {}, {}, 50).ids(kA, 0, {10, 11}).blocks(kA, 0, {6}).row(kA, 0, 2, true);
  plans.start(kB, 3, 3, {}, {}, {}, 50, 3).ids(kB, 0, {10, 11, 12}).blocks(kB, 0, {5}).gated_row(kB, 0, 3);
  apply();
  ASSERT_EQ(batch.proposing.size(), 1u);
  EXPECT_EQ(batch.proposing[0].slot, 1);
  EXPECT_EQ(batch.proposing[0].sample, 1);
  EXPECT_EQ(batch.proposing[0].derived, -1);
  EXPECT_EQ(batch.proposing[0].most, 3);
  EXPECT_EQ(batch.proposing[0].prompt_tokens, 3);
  commit({}, 20);
  kernels::Proposal said{2, 0, {30, 31}};
  WorkerSequences::propose(batch, {&said, 1});
  EXPECT_EQ(batch.proposed, (std::vector<TokenId>{30, 31}));
  EXPECT_EQ(batch.outcomes[0].proposed, 0);
  EXPECT_EQ(batch.outcomes[1].proposed, 2);

  plans.row_from_last(kA, 2, 2).row_from_last(kB, 3, 3, wire::kGated);
  apply();
  ASSERT_EQ(batch.derived.size(), 2u);
  EXPECT_EQ(batch.derived[0].gated, 0);
  EXPECT_EQ(batch.derived[0].proposes, 0);
  EXPECT_EQ(batch.derived[1].gated, 1);
  EXPECT_EQ(batch.derived[1].proposes, 1);
  ASSERT_EQ(batch.proposing.size(), 1u);
  EXPECT_EQ(batch.proposing[0].sample, batch.derived[1].sample);
  EXPECT_EQ(batch.proposing[0].derived, 1);
  commit({{1, 1, 0}, {0, 0, 0}}, 21);
  WorkerSequences::propose(batch, {&said, 1});
  EXPECT_TRUE(batch.proposed.empty()) << "it has yielded no token";

  // Its mask was late: the last known token runs again, and what was sampled behind it is forgotten.
  plans.row_from_last(kB, 2, 1, wire::kGated | wire::kAgain);
  apply();
  EXPECT_TRUE(batch.derived.empty());
  EXPECT_EQ(batch.tokens, std::vector<TokenId>{12});
  EXPECT_EQ(batch.sequences[0].position, 2);
  EXPECT_TRUE(batch.outcomes[0].gated);
  ASSERT_EQ(batch.proposing.size(), 1u);
  EXPECT_EQ(batch.proposing[0].derived, -1);
  commit({}, 22);
}

}  // namespace
}  // namespace troupe::model
