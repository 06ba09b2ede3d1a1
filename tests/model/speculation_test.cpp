// Draft tokens change how many steps an answer takes, and nothing else: tokens and logprobs are bit for bit
// those of a worker that drafts none.
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/cuda.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/cuda/sequence_table.h"
#include "model/support/engine.h"
#include "model/support/files.h"
#include "model/support/oracle_drafter.h"
#include "model/support/speculating.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

using test::Ask;
using test::Engine;
using test::Plans;
using test::Speculating;

using Tokens = std::vector<TokenId>;

class DraftRowsTest : public ::testing::Test {
 protected:
  static constexpr SlotRef kSlot{0, 1};

  // Prompt 10 11 with 12 sampled, of a sequence that may have so many tokens, and as many blocks.
  void begin(int max_tokens, std::vector<BlockId> blocks = {5}, int proposes = 0) {
    plans.start(kSlot, 2, 2, {.seed = 3}, {}, {}, max_tokens, proposes)
        .ids(kSlot, 0, {10, 11})
        .blocks(kSlot, 0, blocks);
    plans.row(kSlot, 0, 2, true);
    apply();
    commit({12});
  }
  void apply() {
    const wire::RecordView view = plans.plan();
    table.apply(view, *view.as<wire::StepPlan>(), batch);
  }
  int commit(const Tokens& sampled, std::size_t error_at = 99) {
    std::vector<kernels::SampleResult> results;
    for (const TokenId token : sampled) results.push_back(kernels::SampleResult{.token = token});
    if (error_at < results.size()) results[error_at].error = kernels::SampleError::not_finite;
    const int yield = batch.yield(0, results);
    table.commit(batch, results);
    table.propose(batch, results);
    return yield;
  }

  Plans plans;
  Tokens drafts;
  WorkerSequences table{2, {}, std::make_unique<test::OracleDrafter>(drafts)};
  StepBatch batch;
};

TEST_F(DraftRowsTest, VerifyBehindTheLastTokenWhereverItStands) {
  begin(100);
  drafts = {20, 21};
  plans.row_from_last(kSlot, 40, 3);
  apply();
  EXPECT_EQ(batch.tokens, (Tokens{12, 20, 21}));
  EXPECT_EQ(batch.sequences[0].position, 2);
  EXPECT_EQ(batch.sample_rows, (std::vector<std::int32_t>{0, 1, 2}));
  ASSERT_EQ(batch.samples.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(batch.samples[i].position, 1 + i) << "the number of its draw is that of its place";
    EXPECT_EQ(batch.samples[i].known_tokens, static_cast<std::int32_t>(3 + i));
    EXPECT_EQ(batch.outcomes[i].position, static_cast<std::int32_t>(3 + i));
  }
  EXPECT_EQ(batch.samples[2].tokens[4], 21) << "penalties count the draft tokens before it";
  EXPECT_EQ(commit({20, 30, 31}), 2) << "the second draft was wrong";
  plans.row_from_last(kSlot, 40, 1);
  apply();
  EXPECT_EQ(batch.tokens, Tokens{30});
  EXPECT_EQ(batch.sequences[0].position, 4);
}

TEST_F(DraftRowsTest, AllAcceptedYieldOneMore) {
  begin(100);
  drafts = {20, 21};
  plans.row_from_last(kSlot, 2, 3);
  apply();
  EXPECT_EQ(commit({20, 21, 22}), 3);
}

TEST_F(DraftRowsTest, AnErrorBehindAnAcceptedDraftIsMetAgainInTheNextStep) {
  begin(100);
  drafts = {20, 21};
  plans.row_from_last(kSlot, 2, 3);
  apply();
  EXPECT_EQ(commit({20, 21, 22}, 1), 1);
  plans.row_from_last(kSlot, 4, 1);
  apply();
  EXPECT_EQ(batch.tokens, Tokens{20});
}

TEST_F(DraftRowsTest, WhatAResultHasSaidIsWhatTheNextRowVerifies) {
  drafts = {20, 21, 22, 23};
  begin(100, {5}, 3);
  EXPECT_EQ(batch.proposed, (Tokens{20, 21, 22}));
  EXPECT_EQ(batch.outcomes[0].proposed, 3);
  drafts = {30};
  plans.row_from_last(kSlot, 2, 3, wire::kGated);
  apply();
  EXPECT_EQ(batch.tokens, (Tokens{12, 20, 21})) << "as many as the row has room for";
  EXPECT_TRUE(batch.outcomes[0].gated);
  EXPECT_FALSE(batch.outcomes[1].gated) << "masks are those of the row";
  batch.outcomes[0].masks = 2;
  EXPECT_EQ(commit({20, 21, 22}), 2) << "no place without its mask yields a token";
  EXPECT_EQ(batch.proposed, Tokens{30});
  plans.row_from_last(kSlot, 4, 4);
  apply();
  EXPECT_EQ(batch.tokens, (Tokens{21, 30}));
  commit({99, 31});
  plans.row_from_last(kSlot, 5, 1, wire::kAgain);
  apply();
  EXPECT_EQ(batch.tokens, Tokens{99}) << "nothing was sampled behind it";
  commit({98});
  plans.row_from_last(kSlot, 5, 1, wire::kGated | wire::kAgain);
  apply();
  EXPECT_EQ(batch.tokens, Tokens{99}) << "98 is forgotten";
  EXPECT_EQ(batch.sequences[0].position, 5);
}

TEST_F(DraftRowsTest, WhatTheFormForcesIsDrafted) {
  begin(15, {5}, 3);
  const Tokens forced{40, 41, 42};
  // The first ones of `sampled` are the draft tokens that are right.
  const auto run = [&](Tokens sampled, std::int32_t masks) {
    plans.row_from_last(kSlot, 20, 4, wire::kGated);
    apply();
    batch.outcomes[0].masks = masks;
    batch.outcomes[0].forced = forced;
    sampled.resize(batch.samples.size());
    commit(sampled);
    return batch.proposed;
  };
  EXPECT_EQ(run({40}, 1), (Tokens{41, 42}));
  drafts = {41, 42, 43};
  EXPECT_EQ(run({41, 42, 39}, 3), drafts) << "the text was cut into other tokens";
  drafts = {77};
  EXPECT_EQ(run({40}, 2), drafts) << "the row ended before the place of its last mask";
  EXPECT_EQ(run({77, 40}, 2), (Tokens{41, 42})) << "not what it drafts itself";
  drafts = {41, 42, 60};
  EXPECT_EQ(run({40}, 1), drafts) << "it has that too, and more";
  drafts = {};
  EXPECT_EQ(run({40}, 1), (Tokens{41, 42}));
  EXPECT_EQ(run({40}, 1), (Tokens{41})) << "the last token is never run";
}

TEST_F(DraftRowsTest, NothingIsSaidThatTheNextRowCannotVerify) {
  drafts = {20, 21, 22};
  begin(5, {5}, 3);
  EXPECT_EQ(batch.proposed, Tokens{20}) << "the fifth token is never run";
  plans.row_from_last(kSlot, 3, 1);
  apply();
  EXPECT_EQ(commit({20}), 1);
  EXPECT_TRUE(batch.proposed.empty());
}

TEST_F(DraftRowsTest, NoRowGoesBeyondTheLastTokenOrTheBlocks) {
  begin(5);
  drafts = {20, 21, 22};
  plans.row_from_last(kSlot, 3, 4);
  apply();
  EXPECT_EQ(batch.tokens, (Tokens{12, 20})) << "two more tokens, the second of which is never run";
  EXPECT_EQ(commit({20, 21}), 2);
  plans.row_from_last(kSlot, 3, 1);
  apply();
  EXPECT_EQ(batch.rows(), 0);
  ASSERT_EQ(batch.outcomes.size(), 1u);
  EXPECT_TRUE(batch.outcomes[0].idle);
}

TEST_F(DraftRowsTest, WithoutABlockForItTheRowIsIdle) {
  begin(100);
  drafts = Tokens(8, 9);
  for (int known = 3; known < 65;) {
    plans.row_from_last(kSlot, 70, 9);
    apply();
    EXPECT_LE(batch.sequences[0].position + batch.sequences[0].tokens, 64);
    known += commit(Tokens(batch.samples.size(), 9));
  }
  plans.row_from_last(kSlot, 70, 9);
  apply();
  EXPECT_EQ(batch.rows(), 0);
}

struct On {
  const char* model;
  bool gpu = false;
  bool tuned = false;  ///< a model whose heads the tensor cores' kernels take
};
void PrintTo(const On& on, std::ostream* out) { *out << on.model << (on.gpu ? " on a GPU" : ""); }

class SpeculationTest : public ::testing::TestWithParam<On> {
 protected:
  void SetUp() override {
    if (!GetParam().gpu) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }

  std::unique_ptr<Executor> make(int drafts) const {
    config::Options options;
    if (GetParam().tuned) options = test::tuned_options(GetParam().model);
    if (!GetParam().tuned) options.model.directory = test::golden_directory(GetParam().model).string();
    options.device.batch_invariant = true;
    if (drafts > 0)
      options.speculation = {.method = config::DraftMethod::ngram, .tokens = drafts, .min_ngram = 1};
    return test::make_executor_of_four(std::move(options), GetParam().gpu);
  }

  static std::vector<Ask> asks(const wire::Sampling& sampling) {
    std::vector<Ask> made;
    for (int i = 0; i < 4; ++i) {
      Ask ask{.outputs = 60 - 7 * i, .sampling = sampling, .stop_ids = {3, 4}};
      for (int t = 0; t < 30 + i; ++t) ask.prompt.push_back(5 + t % (3 + 2 * i));
      ask.sampling.choice = static_cast<std::uint32_t>(i);
      for (int b = 0; b < 2; ++b) ask.blocks.push_back(4 * b + i);
      if (i == 2) ask.sampling.temperature = 0;
      made.push_back(ask);
    }
    return made;
  }
};

TEST_P(SpeculationTest, AnswersAreThoseWithoutDrafts) {
  const std::unique_ptr<Executor> plain = make(0);
  int accepted = 0, drafted = 0;
  for (const int drafts : {1, 4, 8}) {
    const std::unique_ptr<Executor> executor = make(drafts);
    for (const wire::Sampling& sampling :
         {wire::Sampling{.temperature = 0, .logprobs = 2},
          wire::Sampling{.temperature = 1, .top_p = 0.9f, .seed = 4},
          wire::Sampling{.temperature = 0.4f, .top_k = 5, .min_tokens = 20, .seed = 8, .logprobs = 0},
          wire::Sampling{.temperature = 0.7f,
          .repetition_penalty = 1.2f,
          .presence_penalty = 0.3f,
          .frequency_penalty = 0.2f,
          .seed = 11}}) {
      plain->reset(1);
      const std::vector<Ask> of_all = asks(sampling);
      const std::vector<test::Answer> expected = Engine(*plain).run(of_all);
      Speculating speculating(*executor);
      const std::vector<test::Answer> got = speculating.run(of_all, drafts);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << drafts << " drafts, sequence " << i;
        EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << drafts << " drafts, sequence " << i;
      }
      drafted += speculating.drafted;
      accepted += speculating.accepted;
    }
  }
  if (GetParam().tuned) return;  // its answers repeat nothing
  EXPECT_GT(accepted, 100);
  EXPECT_GT(drafted, accepted + 100) << "and some are wrong";
}

TEST_P(SpeculationTest, PredictionsAreFollowedAndChangeNothing) {
  const std::unique_ptr<Executor> plain = make(0);
  for (const wire::Sampling& sampling :
       {wire::Sampling{.temperature = 0, .min_tokens = 9, .logprobs = 1},
        wire::Sampling{.temperature = 0.9f, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = 5}}) {
    const std::vector<Ask> of_all = asks(sampling);
    plain->reset(1);
    const std::vector<test::Answer> expected = Engine(*plain).run(of_all);
    std::vector<Tokens> predictions;
    for (const test::Answer& answer : expected) {
      Tokens one = answer.tokens;
      one[10] = one[10] == 5 ? 6 : 5;                 // another word,
      one.insert(one.begin() + 20, {7, 8});           // two more,
      one.erase(one.begin() + 30, one.begin() + 32);  // and two less
      predictions.push_back(one);
    }
    for (const int drafts : {1, 5, 8}) {
      const std::unique_ptr<Executor> executor = make(drafts);
      Speculating speculating(*executor);
      const std::vector<test::Answer> got = speculating.run(of_all, drafts, predictions);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << drafts << " drafts, sequence " << i;
        EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << drafts << " drafts, sequence " << i;
      }
      EXPECT_GT(speculating.predicted, 60) << drafts << " drafts";
      EXPECT_GT(speculating.accepted, 60) << drafts << " drafts";
      EXPECT_GT(speculating.drafted, speculating.accepted) << "three places are wrong";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculationTest,
                         ::testing::Values(On{"gqa5_untied"}, On{"moe_gqa4"}, On{"gqa5_untied", true},
                                           On{"moe_gqa4", true}, On{"dense_gqa8", true, true},
                                           On{"moe_gqa5", true, true}),
                         [](const auto& info) {
                           return std::string(info.param.model) + (info.param.gpu ? "_cuda" : "_cpu");
                         });

}  // namespace
}  // namespace troupe::model
