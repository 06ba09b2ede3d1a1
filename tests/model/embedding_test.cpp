// The embedding of a prompt is the hidden row of its last token, whatever else its steps run. One body for
// all devices. The row times the model's tied embedding matrix is the reference's row of logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "gpu/cuda.h"
#include "model/support/golden.h"
#include "model/support/speculating.h"

namespace troupe::model {
namespace {

using test::Plans;

struct EmbeddingCase {
  bool gpu = false;
  DType dtype = DType::f32;
};
void PrintTo(const EmbeddingCase& one, std::ostream* out) {
  *out << to_string(one.dtype) << (one.gpu ? " on a GPU" : "");
}

/// Four slots of four blocks each. Prompts are the first ids of the golden one.
class EmbeddingTest : public ::testing::TestWithParam<EmbeddingCase> {
 protected:
  using Vector = std::vector<float>;
  struct Step {
    std::vector<TokenId> tokens;
    std::map<std::uint32_t, Vector> embeddings;  // by slot
  };

  void SetUp() override {
    if (!GetParam().gpu) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }

  static std::unique_ptr<Executor> make(const EmbeddingCase& one,
                                        const config::SpeculationOptions& speculation = {}) {
    config::Options options;
    options.model.directory = test::golden_directory(kModel).string();
    options.model.dtype = one.dtype == DType::f32   ? config::DTypeOption::float32
                          : one.dtype == DType::f16 ? config::DTypeOption::float16
                                                    : config::DTypeOption::bfloat16;
    options.speculation = speculation;
    return test::make_executor_of_four(std::move(options), one.gpu);
  }
  std::unique_ptr<Executor> make() const { return make(GetParam()); }

  int length() const { return static_cast<int>(golden.ids.size()); }
  static SlotRef slot(std::uint32_t index, std::uint32_t generation = 1) { return {index, generation}; }

  /// Starts a sequence with the first `count` ids as its prompt.
  void start(SlotRef ref, int count, const wire::Sampling& sampling, int max_tokens = 0) {
    const auto first = static_cast<BlockId>(ref.slot) * 4;
    plans.start(ref, count, count, sampling, {}, {}, max_tokens)
        .ids(ref, 0, {golden.ids.begin(), golden.ids.begin() + count})
        .blocks(ref, 0, {first, first + 1, first + 2, first + 3});
  }
  void start_embedded(SlotRef ref, int count) { start(ref, count, kEmbeds); }
  void embed(SlotRef ref, int count) {
    start_embedded(ref, count);
    plans.row(ref, 0, count, true);
  }

  void submit(Executor& on) {
    const Status status = on.submit(plans.plan());
    ASSERT_TRUE(status.ok()) << status.message;
  }
  static Step take(Executor& from) {
    std::vector<std::byte> bytes;
    const Result<bool> got = from.poll(bytes, Clock::now() + troupe::test::kPatience);
    EXPECT_TRUE(got.ok() && *got) << got.status().message;
    Step step;
    if (!got.ok() || !*got) return step;
    const wire::RecordView view = test::open_view(bytes);
    const auto& result = *view.as<wire::StepResult>();
    const auto tokens = view.array(result.tokens);
    step.tokens.assign(tokens.begin(), tokens.end());
    for (const wire::ResultRow& row : view.array(result.rows)) EXPECT_EQ(row.error, wire::RowError::none);
    for (const wire::Embedding& one : view.array(result.embeddings)) {
      const auto values = view.array(one.values);
      EXPECT_TRUE(step.embeddings.emplace(one.slot.slot, Vector(values.begin(), values.end())).second);
    }
    return step;
  }
  Step run(Executor& on) {
    submit(on);
    return take(on);
  }

  /// The step has embeddings of these slots alone, each of a prompt of so many tokens.
  void expect_embeddings(const Step& step, const std::map<std::uint32_t, int>& prompts) const {
    ASSERT_EQ(step.embeddings.size(), prompts.size());
    for (const auto& [index, count] : prompts) {
      SCOPED_TRACE("slot " + std::to_string(index) + ", " + std::to_string(count) + " tokens");
      ASSERT_TRUE(step.embeddings.contains(index));
      expect_row(step.embeddings.at(index), count);
    }
  }

  void expect_row(const Vector& embedding, int count) const {
    const std::size_t vocab = golden.logits.size() / golden.ids.size(), width = matrix.size() / vocab;
    ASSERT_EQ(embedding.size(), width);
    const float* expected = golden.logits.data() + static_cast<std::size_t>(count - 1) * vocab;
    double largest = 0, error = 0;
    for (std::size_t token = 0; token < vocab; ++token) {
      double logit = 0;
      for (std::size_t c = 0; c < width; ++c)
        logit += static_cast<double>(embedding[c]) * static_cast<double>(matrix[token * width + c]);
      const auto wanted = static_cast<double>(expected[token]);
      largest = std::max(largest, std::fabs(wanted));
      error = std::max(error, std::fabs(logit - wanted));
    }
    EXPECT_LE(error, test::kTolerance[static_cast<int>(GetParam().dtype)] * largest);
  }

  static constexpr const char* kModel = "gqa3_tied";
  static constexpr wire::Sampling kEmbeds{.temperature = 0, .embeds = 1};
  static constexpr wire::Sampling kGreedy{.temperature = 0};

  const test::Golden golden = test::load_golden(kModel);
  const Vector matrix =
      test::values<float>(*Checkpoint::open_file(test::golden_directory(kModel) / "model.safetensors"),
                          "model.embed_tokens.weight");
  Plans plans;
};

TEST_P(EmbeddingTest, SeveralInOneStep) {
  const auto executor = make();
  embed(slot(1), 7), embed(slot(0), length()), embed(slot(3), 1), embed(slot(2), 64);
  expect_embeddings(run(*executor), {{0, length()}, {1, 7}, {2, 64}, {3, 1}});
}

TEST_P(EmbeddingTest, ItComesWithThePromptsLastChunk) {
  const auto executor = make();
  std::uint32_t generation = 0;
  for (const int chunk : {149, 64, 37, 3}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    const SlotRef ref = slot(2, ++generation);
    start_embedded(ref, length());
    for (int at = 0; at < length(); at += chunk) {
      const int tokens = std::min(chunk, length() - at);
      const bool ends = at + tokens == length();
      plans.row(ref, at, tokens, ends);
      const Step step = run(*executor);
      if (ends) {
        expect_embeddings(step, {{2, length()}});
      } else {
        EXPECT_TRUE(step.embeddings.empty());
      }
    }
    plans.finish(ref);
  }
}

TEST_P(EmbeddingTest, BesideSequencesThatDecode) {
  const auto executor = make();
  for (const std::uint32_t index : {0u, 2u}) {
    start(slot(index), length(), kGreedy);
    plans.row(slot(index), 0, length(), true);
  }
  ASSERT_EQ(run(*executor).tokens.size(), 2u);
  embed(slot(1), 20);
  plans.row(slot(0), length(), 1, true);
  embed(slot(3), 33);
  plans.row(slot(2), length(), 1, true);
  const Step step = run(*executor);
  expect_embeddings(step, {{1, 20}, {3, 33}});
  ASSERT_EQ(step.tokens.size(), 4u);
  if (GetParam().dtype == DType::f32) {
    EXPECT_EQ(step.tokens[1], golden.greedy[1]);
    EXPECT_EQ(step.tokens[3], golden.greedy[1]);
  }
}

// Such a step decodes as far as its rows tell: a graph on a GPU.
TEST_P(EmbeddingTest, InAStepOfOneRowEach) {
  const auto executor = make();
  start(slot(0), length(), kGreedy);
  plans.row(slot(0), 0, length(), true);
  start_embedded(slot(1), 41), plans.row(slot(1), 0, 40, false);
  start_embedded(slot(3), 66), plans.row(slot(3), 0, 65, false);
  EXPECT_TRUE(run(*executor).embeddings.empty());
  plans.row(slot(1), 40, 1, true).row(slot(0), length(), 1, true).row(slot(3), 65, 1, true);
  submit(*executor);
  plans.row(slot(0), length() + 1, 1, true);
  submit(*executor);
  const Step step = take(*executor);
  expect_embeddings(step, {{1, 41}, {3, 66}});
  ASSERT_EQ(step.tokens.size(), 3u);
  EXPECT_TRUE(take(*executor).embeddings.empty());
}

// Scored rows take the place of sampled ones for a while, a group of four after the other.
TEST_P(EmbeddingTest, BesidePromptLogprobs) {
  const auto executor = make();
  embed(slot(2), 50);
  start(slot(0), length(), {.temperature = 0, .logprobs = 1, .prompt_logprobs = 1});
  plans.row(slot(0), 0, length(), true);
  embed(slot(1), 90);
  expect_embeddings(run(*executor), {{1, 90}, {2, 50}});
}

TEST_P(EmbeddingTest, TwoStepsAreOut) {
  const auto executor = make();
  for (std::uint32_t round = 1; round <= 5; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int some = 10 * static_cast<int>(round);
    for (const std::uint32_t index : {0u, 1u, 2u, 3u}) {
      if (round > 1) plans.finish(slot(index, round - 1));
    }
    embed(slot(0, round), some), embed(slot(1, round), some + 1);
    submit(*executor);
    embed(slot(2, round), some + 2), embed(slot(3, round), some + 3);
    submit(*executor);
    expect_embeddings(take(*executor), {{0, some}, {1, some + 1}});
    expect_embeddings(take(*executor), {{2, some + 2}, {3, some + 3}});
  }
}

TEST_P(EmbeddingTest, InAStepThatWaitsForMasks) {
  const auto executor = make();
  test::Masks masks;
  start(slot(0), 30, kGreedy);
  plans.gated_row(slot(0), 0, 30);
  embed(slot(1), 60);
  submit(*executor);
  embed(slot(2), 90);
  submit(*executor);
  std::vector<std::byte> bytes;
  const Result<bool> early = executor->poll(bytes, Clock::now());
  ASSERT_TRUE(early.ok());
  EXPECT_FALSE(*early);
  ASSERT_TRUE(executor->submit(masks.all(slot(0)).masks(1)).ok());
  expect_embeddings(take(*executor), {{1, 60}});
  expect_embeddings(take(*executor), {{2, 90}});
}

// A draft layer uses the memory of the sampled rows behind the step.
TEST_P(EmbeddingTest, BesideRowsThatVerifyDrafts) {
  for (const config::DraftMethod method : {config::DraftMethod::ngram, config::DraftMethod::mtp}) {
    SCOPED_TRACE(method == config::DraftMethod::mtp ? "by a draft layer" : "by ngrams");
    config::SpeculationOptions speculation{.method = method, .tokens = 3, .min_ngram = 1};
    if (method == config::DraftMethod::mtp) {
      speculation.mtp_steps = 3;
      speculation.draft_model = test::golden_directory(std::string("draft_") + kModel).string();
    }
    const auto executor = make(GetParam(), speculation);
    plans = {};
    start(slot(0), length(), kGreedy, length() + 40);
    plans.row(slot(0), 0, length(), true);
    embed(slot(2), 64);
    start_embedded(slot(1), 31), plans.row(slot(1), 0, 30, false);
    expect_embeddings(run(*executor), {{2, 64}});
    // A row for each sequence, which one row more pads.
    plans.row_from_last(slot(0), length(), 2).row(slot(1), 30, 1, true);
    expect_embeddings(run(*executor), {{1, 31}});
    plans.finish(slot(1)).finish(slot(2));
    embed(slot(1, 2), 17);
    plans.row_from_last(slot(0), length() + 2, 4);
    embed(slot(2, 2), 128);
    expect_embeddings(run(*executor), {{1, 17}, {2, 128}});
  }
}

TEST_P(EmbeddingTest, APromptMayFillASequence) {
  const auto executor = make();
  const auto longest = executor->capacity().max_model_len;
  Vector expected;
  for (const bool on_cpu : {true, false}) {
    const auto reference = on_cpu ? make({.dtype = GetParam().dtype}) : nullptr;
    plans = {};
    std::vector<TokenId> ids;
    while (std::ssize(ids) < longest) ids.push_back(golden.ids[ids.size() % golden.ids.size()]);
    plans.start(slot(1), longest, longest, kEmbeds).ids(slot(1), 0, ids).blocks(slot(1), 0, {4, 5, 6, 7});
    plans.row(slot(1), 0, longest, true);
    Vector got = run(on_cpu ? *reference : *executor).embeddings[1];
    ASSERT_EQ(got.size(), 48u);
    if (on_cpu) expected = std::move(got);
    for (std::size_t c = 0; !on_cpu && c < got.size(); ++c)
      EXPECT_NEAR(got[c], expected[c], GetParam().dtype == DType::f32 ? 1e-3 : 5e-2) << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, EmbeddingTest,
                         ::testing::Values(EmbeddingCase{}, EmbeddingCase{false, DType::bf16}));
INSTANTIATE_TEST_SUITE_P(Gpu, EmbeddingTest,
                         ::testing::Values(EmbeddingCase{true}, EmbeddingCase{true, DType::f16},
                                           EmbeddingCase{true, DType::bf16}));

}  // namespace
}  // namespace troupe::model
