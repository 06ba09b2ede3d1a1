// Drafts by the model's own layer change no answer, and which tokens it drafts depends on the tokens before
// them alone: not on chunks, cached blocks, blocks that come late, masks, or the device.
#include <gtest/gtest.h>

#include "gpu/cuda.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/support/draft.h"
#include "model/support/speculating.h"
#include "model/support/tuned_golden.h"

namespace troupe::model {
namespace {

using test::Ask;
using test::Speculating;

struct Method {
  int tokens = 0, steps = 0;  ///< 0: no drafts
  bool with_ngram = false;
};
constexpr Method kOne{1, 1}, kThree{3, 3}, kAppended{4, 1, true};

enum class Place { cpu, gpu, tuned };  ///< tuned: a shape that the tensor cores' kernels take
struct DraftingOn {
  const char* model;
  Place place;
};
void PrintTo(const DraftingOn& on, std::ostream* out) {
  *out << on.model << (on.place == Place::cpu ? "" : " on a GPU");
}

class MtpSpeculation : public ::testing::TestWithParam<DraftingOn> {
 protected:
  void SetUp() override {
    if (GetParam().place == Place::cpu) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }

  std::unique_ptr<Executor> make(const Method& method) { return make_on(GetParam().place, method); }
  std::unique_ptr<Executor> make_on(Place place, const Method& method, bool invariant = true) {
    const std::string name = GetParam().model;
    config::Options options;
    if (place == Place::tuned) {
      options = test::tuned_options(name);
      options.model.directory = with_layer(name).string();
    } else {
      options.model.directory = test::golden_directory(name).string();
      options.model.dtype = config::DTypeOption::float32;
    }
    if (method.tokens > 0) {
      options.speculation = {.method = config::DraftMethod::mtp,
                             .tokens = method.tokens,
                             .mtp_steps = method.steps,
                             .with_ngram = method.with_ngram,
                             .min_ngram = 1};
      if (place != Place::tuned)
        options.speculation.draft_model = test::golden_directory("draft_" + name).string();
    }
    options.device.batch_invariant = invariant;
    return test::make_executor_of_four(std::move(options), place != Place::cpu);
  }

  /// Answers of a few tokens each of which is about as likely, so that a draft is right now and then.
  static std::vector<Ask> asks(const wire::Sampling& sampling, int prompt = 30) {
    std::vector<Ask> made;
    for (int i = 0; i < 4; ++i) {
      Ask ask{.outputs = 80 - 7 * i, .sampling = sampling, .stop_ids = {9, 10}};
      for (int t = 0; t < prompt + i; ++t) ask.prompt.push_back(5 + t * (2 + i) % 11);
      for (const TokenId id : {40, 41, 42, 43, 9}) ask.bias.push_back({id, 60});
      ask.sampling.choice = static_cast<std::uint32_t>(i);
      for (int b = 0; b < 3; ++b) ask.blocks.push_back(5 * b + i);
      made.push_back(ask);
    }
    return made;
  }

  /// Of the rows that both verified with as many drafts, all accepted the same number.
  static void expect_equal(const Speculating::Outcomes& a, const Speculating::Outcomes& b, const char* what) {
    int common = 0;
    for (const auto& [at, outcome] : a) {
      const auto other = b.find(at);
      if (other == b.end() || other->second.drafted != outcome.drafted) continue;
      ++common;
      EXPECT_EQ(other->second.accepted, outcome.accepted)
          << what << ": sequence " << at.first << " behind " << at.second << " tokens";
    }
    EXPECT_GT(common, 50) << what;
  }

 private:
  /// config.json of a made model, with a draft layer.
  std::filesystem::path with_layer(const std::string& name) {
    std::string text = test::read_text(test::tuned_directory(name) / "config.json");
    const std::string before = "\"use_bias\"";
    const std::size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos);
    test::write_text(directory_.path() / "config.json", text.insert(at, "\"num_nextn_predict_layers\": 1, "));
    return directory_.path();
  }

  test::TempDirectory directory_;
};

constexpr wire::Sampling kGreedy{.temperature = 0, .logprobs = 1};
constexpr wire::Sampling kDrawn{.temperature = 0.6f, .top_p = 0.95f, .seed = 4};
constexpr wire::Sampling kSharp{.temperature = 0.3f, .seed = 9};
constexpr wire::Sampling kPenalised{.temperature = 0.7f,
                                    .repetition_penalty = 1.2f,
                                    .presence_penalty = 0.3f,
                                    .frequency_penalty = 0.2f,
                                    .min_tokens = 20,
                                    .seed = 11};

TEST_P(MtpSpeculation, AnswersAreThoseWithoutDrafts) {
  const std::unique_ptr<Executor> plain = make({});
  for (const Method& method : {kOne, kThree, kAppended}) {
    const std::unique_ptr<Executor> executor = make(method);
    int drafted = 0, accepted = 0;
    for (const wire::Sampling& sampling : {kGreedy, kDrawn, kPenalised}) {
      for (const bool late : {false, true}) {
        plain->reset(1);
        const std::vector<Ask> of_all = asks(sampling);
        const std::vector<test::Answer> expected = test::Engine(*plain).run(of_all);
        Speculating speculating(*executor);
        speculating.blocks_late = late;
        const std::vector<test::Answer> got = speculating.run(of_all, method.tokens);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(got[i].tokens, expected[i].tokens) << method.tokens << " drafts, sequence " << i;
          EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << method.tokens << " drafts, sequence " << i;
        }
        drafted += speculating.drafted;
        accepted += speculating.accepted;
      }
    }
    EXPECT_GT(accepted, 100) << method.tokens;
    EXPECT_GT(drafted, accepted + 100) << method.tokens;
  }
}

// A KV slot that is missing or wrong changes a draft now and then: the less, the longer the text.
TEST_P(MtpSpeculation, DraftsDependOnTheTokensBeforeThemAlone) {
  struct Run {
    const char* name;
    int prompt, chunk;
    bool blocks_late = false;
    int gated = 0, from = 0;
  };
  constexpr Run kRuns[] = {{.name = "again", .prompt = 9, .chunk = 1000},
                           {.name = "token by token", .prompt = 9, .chunk = 1},
                           {.name = "in chunks", .prompt = 9, .chunk = 4},
                           {.name = "behind masks", .prompt = 3, .chunk = 1000, .gated = 6},
                           {.name = "late blocks", .prompt = 50, .chunk = 1000, .blocks_late = true},
                           {.name = "in chunks of a block", .prompt = 75, .chunk = 64},
                           {.name = "behind cached blocks", .prompt = 75, .chunk = 1000, .from = 64}};
  for (const Method& method : {kOne, kThree}) {
    const std::unique_ptr<Executor> executor = make(method);
    for (const Run& one : kRuns) {
      int accepted = 0, drafted = 0;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        std::vector<Ask> of_all =
            asks({.temperature = seed % 2 == 0 ? 0.2f : 0.7f, .seed = seed}, one.prompt);
        Speculating expected(*executor), got(*executor);
        (void)expected.run(of_all, method.tokens);
        for (std::size_t i = 0; i < of_all.size(); ++i) {
          of_all[i].chunk = one.chunk;
          // What lies in blocks that are not cached is another sequence's.
          for (std::size_t b = one.from > 0 ? 1 : 0; b < of_all[i].blocks.size(); ++b)
            of_all[i].blocks[b] = BlockId(5 * b + (i + 1 + b) % of_all.size());
        }
        got.blocks_late = one.blocks_late, got.gated = one.gated, got.from = one.from;
        (void)got.run(of_all, method.tokens);
        expect_equal(got.outcomes, expected.outcomes, one.name);
        accepted += got.accepted, drafted += got.drafted;
      }
      EXPECT_GT(accepted, 60) << one.name;
      EXPECT_GT(drafted, accepted + 60) << one.name;
    }
  }
}

// Not where n-grams append: the CPU looks at a bounded number of places, a GPU at all of them.
TEST_P(MtpSpeculation, DraftsAreThoseOfTheCpu) {
  if (GetParam().place != Place::gpu) GTEST_SKIP() << "the same numbers only in float32";
  for (const Method& method : {kOne, kThree}) {
    const std::unique_ptr<Executor> gpu = make(method), cpu = make_on(Place::cpu, method);
    for (const wire::Sampling& sampling : {kSharp, kDrawn}) {
      Speculating on_gpu(*gpu), on_cpu(*cpu);
      const auto answers = on_gpu.run(asks(sampling), method.tokens);
      const auto expected = on_cpu.run(asks(sampling), method.tokens);
      for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].tokens, expected[i].tokens);
      expect_equal(on_gpu.outcomes, on_cpu.outcomes, "both devices");
      EXPECT_EQ(on_gpu.drafted, on_cpu.drafted);
      EXPECT_EQ(on_gpu.accepted, on_cpu.accepted);
    }
  }
}

// Other kernels, whose sums have another order.
TEST_P(MtpSpeculation, WithoutBatchInvarianceAboutAsManyAreRight) {
  if (GetParam().place != Place::tuned) GTEST_SKIP() << "the same kernels";
  for (const Method& method : {kOne, kThree}) {
    const std::unique_ptr<Executor> invariant = make(method), usual = make_on(Place::tuned, method, false);
    Speculating with(*invariant), without(*usual);
    (void)with.run(asks(kDrawn), method.tokens);
    (void)without.run(asks(kDrawn), method.tokens);
    ASSERT_GT(with.drafted, 0);
    ASSERT_GT(without.drafted, 0);
    EXPECT_NEAR(double(without.accepted) / without.drafted, double(with.accepted) / with.drafted, 0.15);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, MtpSpeculation,
    ::testing::Values(DraftingOn{"gqa3_tied", Place::cpu}, DraftingOn{"moe_shared2", Place::cpu},
                      DraftingOn{"gqa3_tied", Place::gpu}, DraftingOn{"gqa5_untied", Place::gpu},
                      DraftingOn{"moe_shared2", Place::gpu}, DraftingOn{"dense_gqa8", Place::tuned},
                      DraftingOn{"moe_gqa5", Place::tuned}),
    [](const auto& info) {
      return std::string(info.param.model) + (info.param.place == Place::cpu ? "_cpu" : "_cuda");
    });

}  // namespace
}  // namespace troupe::model
