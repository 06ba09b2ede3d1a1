// Requests whose answers are held to a form: compiled before they are submitted, released when they end.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/byte_tokenizer.h"
#include "support/served_book.h"
#include "support/thrown_fault.h"

namespace troupe {
namespace {

using Kind = http::AnswerForm::Kind;

using testing::ByteTokenizer;

constexpr TokenId kThink = 258, kThinkEnd = 259;

class SessionFormTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const SessionContext> make_context() {
    const auto tokenizer = std::make_shared<ByteTokenizer>(std::vector<std::string>{"<think>", "</think>"});
    return std::make_shared<SessionContext>(
        SessionContext{tokenizer,
                       {ByteTokenizer::kEos},
                       64,
                       tokenizer->vocab_size(),
                       *AnswerSyntax::make("ernie-45-vl", "", *tokenizer)});
  }

  std::shared_ptr<const SessionContext> context_ = make_context();
  testing::ServedBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  Submit submit_;

  /// Opens exchange 5 and returns what has to be compiled. `last`: of the prompt's tokens.
  std::optional<Compile> open(Generation generation, TokenId last = kThinkEnd) {
    Ask ask;
    ask.exchange = 5;
    ask.request_id = "r";
    ask.generation = std::move(generation);
    book_.open(std::move(ask));
    Encoded encoded;
    encoded.prompts = {{'a', 'b', last}};
    submit_ = book_.encoded(5, std::move(encoded), 10, effects_);
    return book_.take_compile(5);
  }

  static Generation with_form() {
    Generation out;
    out.choices = 2;
    out.best_of = 2;
    out.sampling.min_tokens = 1;
    out.form = {Kind::regex, "a+", "guided_regex"};
    return out;
  }
};

TEST_F(SessionFormTest, FreeAnswersAreSubmittedAtOnce) {
  EXPECT_FALSE(open({}).has_value());
  ASSERT_EQ(submit_.sequences.size(), 1u);
  EXPECT_EQ(submit_.sequences[0].grammar, 0u);
}

TEST_F(SessionFormTest, AllChoicesAreHeldToTheGrammar) {
  const auto job = open(with_form());
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->request_id, "r");
  EXPECT_EQ(job->form.param, "guided_regex");
  EXPECT_TRUE(submit_.sequences.empty());  // held until the grammar is there
  const Submit submit = book_.compiled(5, {0, 1}, {{}, 77}, 20, effects_);
  ASSERT_EQ(submit.sequences.size(), 2u);
  for (const SequenceSpec& sequence : submit.sequences) {
    EXPECT_EQ(sequence.grammar, 77u);
    EXPECT_EQ(sequence.gated_from, 0);
    EXPECT_EQ(sequence.sampling.min_tokens, 0);
  }
  EXPECT_TRUE(effects_.grammars.empty());
  book_.withdraw(5, 30, effects_);
  EXPECT_EQ(effects_.grammars, (std::vector<ReleasedGrammar>{{0, 77}}));
}

TEST_F(SessionFormTest, ARefusalEndsTheRequest) {
  ASSERT_TRUE(open(with_form()).has_value());
  const Submit submit = book_.compiled(
      5, {0, 1}, {invalid("guided_regex is wrong", "guided_regex", "invalid_regex"), 0}, 20, effects_);
  EXPECT_TRUE(submit.sequences.empty());
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_NE(effects_.outputs[0].body.find("invalid_regex"), std::string::npos);
  EXPECT_EQ(book_.size(), 0u);
}

TEST_F(SessionFormTest, AFormThatFindsNoPlaceToWaitMayComeAgain) {
  ASSERT_TRUE(open(with_form()).has_value());
  book_.compiled(5, {0, 1}, {{Code::overloaded, "full", "guided_regex", "grammar_queue_full"}, 0}, 20,
                 effects_);
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 429);
  const auto& headers = effects_.outputs[0].headers;
  EXPECT_NE(
      std::find(headers.begin(), headers.end(), std::pair<std::string, std::string>("Retry-After", "1")),
      headers.end());
}

TEST_F(SessionFormTest, AClientThatLeavesWhileCompilingLeavesNoGrammar) {
  ASSERT_TRUE(open(with_form()).has_value());
  book_.withdraw(5, 15, effects_);
  EXPECT_EQ(book_.size(), 0u);
  EXPECT_TRUE(book_.compiled(5, {0, 1}, {{}, 78}, 20, effects_).sequences.empty());
  EXPECT_EQ(effects_.grammars, (std::vector<ReleasedGrammar>{{0, 78}}));
}

TEST_F(SessionFormTest, ABudgetOfThoughtsNeedsAGrammarToo) {
  Generation generation;
  generation.limits.thinking = 8;
  const auto job = open(generation, kThink);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->form.kind, Kind::free);
  EXPECT_EQ(job->thinking.budget, 8);
  EXPECT_EQ(job->thinking.forced, std::vector<TokenId>{kThinkEnd});
  EXPECT_TRUE(job->thinking.denied.empty()) << "a free answer may end in its thoughts";
  EXPECT_EQ(book_.compiled(5, {0, 1}, {{}, 1}, 20, effects_).sequences[0].gated_from, 8);
}

TEST_F(SessionFormTest, ThoughtsWithoutABudgetOrAFormAreFree) { EXPECT_FALSE(open({}, kThink).has_value()); }

TEST_F(SessionFormTest, ThoughtsBeforeAFormCannotEndTheAnswer) {
  Generation generation = with_form();
  generation.stop_ids = {'x', kThinkEnd, 'x', 7};
  generation.ignore_eos = true;
  const auto job = open(generation, kThink);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->thinking.denied, (std::vector<TokenId>{7, 'x', ByteTokenizer::kEos}));
  EXPECT_EQ(book_.compiled(5, {0, 1}, {{}, 1}, 20, effects_).sequences[0].gated_from, 0);
}

TEST_F(SessionFormTest, ThoughtsBeforeAFormAreHeldFromTheirFirstTokenWhateverTheirBudget) {
  Generation generation = with_form();
  generation.limits.thinking = 8;
  const auto job = open(generation, kThink);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->thinking.denied, std::vector<TokenId>{ByteTokenizer::kEos});
  EXPECT_EQ(book_.compiled(5, {0, 1}, {{}, 1}, 20, effects_).sequences[0].gated_from, 0);
}

TEST_F(SessionFormTest, AFaultOfOneSessionEndsIt) {
  {
    const testing::ThrownFault fault("session");
    ASSERT_FALSE(open(with_form()).has_value());
  }
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 500);
  EXPECT_EQ(book_.size(), 0u);
  EXPECT_TRUE(open(with_form()).has_value()) << "the next one is served";
}

}  // namespace
}  // namespace troupe
