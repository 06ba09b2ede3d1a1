// Answers that are held to a form are the same with draft tokens and without: whatever drafts them, wherever
// in a row the form begins, forces or refuses, and when a mask is late.
#include <gtest/gtest.h>

#include "gpu/cuda.h"
#include "model/support/draft.h"
#include "model/support/files.h"
#include "model/support/formed.h"
#include "model/support/speculating.h"

namespace troupe::model {
namespace {

using test::Ask;
using test::Form;
using test::Formed;

struct FormCase {
  const char* model;
  bool by_layer = false;
  bool gpu = false;
};
void PrintTo(const FormCase& one, std::ostream* out) {
  *out << one.model << (one.by_layer ? ", draft layer" : ", n-grams") << (one.gpu ? ", on a GPU" : "");
}

class FormSpeculation : public ::testing::TestWithParam<FormCase> {
 protected:
  void SetUp() override {
    if (!GetParam().gpu) return;
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }

  static std::unique_ptr<Executor> make(int drafts) {
    const FormCase& one = GetParam();
    config::Options options;
    options.model.directory = test::golden_directory(one.model).string();
    options.model.dtype = config::DTypeOption::float32;
    options.device.batch_invariant = true;
    if (drafts > 0 && one.by_layer) {
      options.speculation = {.method = config::DraftMethod::mtp,
                             .tokens = drafts,
                             .mtp_steps = std::min(drafts, 2),
                             .with_ngram = drafts > 2,
                             .min_ngram = 1};
      options.speculation.draft_model = test::golden_directory(std::string("draft_") + one.model).string();
    } else if (drafts > 0) {
      options.speculation = {.method = config::DraftMethod::ngram, .tokens = drafts, .min_ngram = 1};
    }
    return test::make_executor_of_four(std::move(options), one.gpu);
  }

  static std::vector<Ask> asks(const wire::Sampling& sampling) {
    std::vector<Ask> made;
    for (int i = 0; i < 4; ++i) {
      Ask ask{.outputs = 90 - 9 * i, .sampling = sampling};
      for (int t = 0; t < 20 + i; ++t) ask.prompt.push_back(5 + t % (3 + 2 * i));
      // Few tokens are likely, so that texts repeat.
      for (const TokenId id : {40, 41, 46, 47, 53}) ask.bias.push_back({id, 40});
      ask.sampling.choice = static_cast<std::uint32_t>(i);
      for (int b = 0; b < 2; ++b) ask.blocks.push_back(4 * b + i);
      made.push_back(ask);
    }
    return made;
  }

  static void expect_equal(const std::vector<test::Answer>& got, const std::vector<test::Answer>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << "sequence " << i;
      EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << "sequence " << i;
    }
  }
};

constexpr wire::Sampling kGreedyForm{.temperature = 0, .logprobs = 1};
constexpr wire::Sampling kDrawnForm{.temperature = 0.7f,
                                    .top_p = 0.95f,
                                    .repetition_penalty = 1.1f,
                                    .frequency_penalty = 0.1f,
                                    .min_tokens = 12,
                                    .seed = 4};

TEST_P(FormSpeculation, AnswersAreThoseWithoutDrafts) {
  const std::unique_ptr<Executor> plain = make(0);
  for (const int drafts : {1, 4}) {
    const std::unique_ptr<Executor> executor = make(drafts);
    int accepted = 0, drafted = 0;
    for (const wire::Sampling& sampling : {kGreedyForm, kDrawnForm}) {
      for (const std::size_t free : {0u, 13u}) {
        const Form form(plain->capacity().vocab_size, free);
        const std::vector<Ask> of_all = asks(sampling);
        Formed without(*plain, form, 0);
        const std::vector<test::Answer> expected = without.run(of_all);
        for (const int late : {0, 9}) {
          SCOPED_TRACE(std::to_string(drafts) + " drafts, " + std::to_string(free) + " free, one of " +
                       std::to_string(late) + " late");
          Formed with(*executor, form, drafts);
          with.late_every = late;
          expect_equal(with.run(of_all), expected);
          if (late == 0) {
            EXPECT_LT(with.steps, without.steps);
          }
          accepted += with.accepted, drafted += with.drafted;
        }
      }
    }
    EXPECT_GT(accepted, 100) << drafts;
    EXPECT_GT(drafted, accepted + 20) << drafts << ": some are wrong";
  }
}

TEST_P(FormSpeculation, PredictionsAreFollowed) {
  const std::unique_ptr<Executor> plain = make(0), executor = make(4);
  const Form form(plain->capacity().vocab_size, 5);
  const std::vector<Ask> of_all = asks(kGreedyForm);
  const std::vector<test::Answer> expected = Formed(*plain, form, 0).run(of_all);
  std::vector<std::vector<TokenId>> predictions;
  for (const test::Answer& answer : expected) predictions.push_back(answer.tokens);
  Formed with(*executor, form, 4);
  expect_equal(with.run(of_all, predictions), expected);
  EXPECT_GT(with.predicted, 100);
  EXPECT_GT(with.accepted, with.drafted * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Models, FormSpeculation,
                         ::testing::Values(FormCase{"gqa5_untied"}, FormCase{"gqa3_tied", true},
                                           FormCase{"gqa5_untied", false, true},
                                           FormCase{"moe_gqa4", false, true},
                                           FormCase{"gqa3_tied", true, true},
                                           FormCase{"moe_shared2", true, true}),
                         [](const auto& info) {
                           return std::string(info.param.model) +
                                  (info.param.by_layer ? "_layer" : "_ngram") +
                                  (info.param.gpu ? "_cuda" : "_cpu");
                         });

}  // namespace
}  // namespace troupe::model
