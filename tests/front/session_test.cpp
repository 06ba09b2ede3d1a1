#include "actors/session/session_book.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/byte_tokenizer.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

class SessionTest : public ::testing::Test {
 protected:
  std::shared_ptr<const SessionContext> context_ = std::make_shared<SessionContext>(
      SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
  testing::ServedBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  std::vector<SequenceSpec> sequences_;

  static Ask ask(Api api = Api::chat) {
    Ask out;
    out.exchange = 5;
    out.api = api;
    out.answer.id = "id-1";
    out.answer.model = "m";
    return out;
  }

  static Encoded with_prompts(std::vector<std::vector<TokenId>> prompts) {
    Encoded out;
    out.prompts = std::move(prompts);
    return out;
  }

  void open(Ask request, std::vector<std::vector<TokenId>> prompts) {
    const std::uint64_t exchange = request.exchange;
    Encoded encoded = with_prompts(std::move(prompts));
    for (const auto& ids : encoded.prompts) {  // each is a byte of one character
      if (request.answer.echo)
        encoded.texts.push_back({{ids.begin(), ids.end()}, static_cast<std::int64_t>(ids.size())});
    }
    book_.open(std::move(request));
    sequences_ = book_.encoded(exchange, std::move(encoded), 10, effects_).sequences;
  }

  void step(std::size_t sequence, const std::string& text, Finish finish = Finish::none, bool eos = false,
            std::int32_t cached_tokens = 0) {
    StepTokens out;
    SequenceTokens tokens;
    tokens.key = sequences_[sequence].key;
    for (const char c : text) out.tokens.push_back(static_cast<unsigned char>(c));
    if (eos) out.tokens.push_back(ByteTokenizer::kEos);
    tokens.tokens = static_cast<std::int32_t>(out.tokens.size());
    tokens.finish = finish;
    tokens.cached_tokens = cached_tokens;
    out.sequences.push_back(tokens);
    book_.take(out, 20, Slice(), effects_);
  }

  /// Ends a sequence without a token.
  void end(std::size_t sequence, Finish finish, const std::string& error) {
    StepTokens out;
    SequenceTokens tokens;
    tokens.key = sequences_[sequence].key;
    tokens.finish = finish;
    out.set_error(tokens, error);
    out.sequences.push_back(tokens);
    book_.take(out, 30, Slice(), effects_);
  }

  std::string bytes() const {
    std::string all;
    for (const auto& output : effects_.outputs) all += output.body;
    return all;
  }

  /// The JSON of every SSE frame but [DONE].
  std::vector<json> frames() const {
    std::vector<json> out;
    std::string text = bytes();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find("\n\n", at);
      const std::string frame = text.substr(at + 6, end - at - 6);
      if (frame != "[DONE]") out.push_back(json::parse(frame));
      at = end + 2;
    }
    return out;
  }
};

TEST_F(SessionTest, AWholeAnswerHidesTheEndToken) {
  open(ask(), {{'a', 'b'}});
  ASSERT_EQ(sequences_.size(), 1u);
  EXPECT_EQ(sequences_[0].max_output_tokens, 62);
  EXPECT_EQ(sequences_[0].stop_ids, std::vector<TokenId>{ByteTokenizer::kEos});
  step(0, "Hi");
  EXPECT_TRUE(effects_.outputs.empty());
  step(0, "!", Finish::stop, true);
  ASSERT_EQ(effects_.outputs.size(), 1u);
  const json answer = json::parse(bytes());
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hi!");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(effects_.cancel.empty());
  EXPECT_EQ(book_.size(), 0u);
  EXPECT_EQ(book_.take_closed(), std::vector<std::uint64_t>{5});
}

TEST_F(SessionTest, AStreamHasRoleDeltasFinishUsageDone) {
  Ask request = ask();
  request.answer.stream = request.answer.include_usage = true;
  open(request, {{'a'}});
  step(0, "x");
  step(0, "y", Finish::length);
  const auto all = frames();
  ASSERT_GE(all.size(), 4u);
  EXPECT_EQ(all[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(all[1]["choices"][0]["delta"]["content"], "x");
  EXPECT_EQ(all[all.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(all.back()["choices"].empty());
  EXPECT_EQ(all.back()["usage"]["completion_tokens"], 2);
  EXPECT_TRUE(bytes().ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(effects_.outputs.back().kind, http::Output::Kind::end);
  EXPECT_FALSE(effects_.outputs.back().failed);
}

TEST_F(SessionTest, AStopStringCancelsTheSequence) {
  Ask request = ask();
  request.generation.stop = {"END"};
  open(request, {{'a'}});
  step(0, "one E");
  step(0, "ND two");
  EXPECT_EQ(json::parse(bytes())["choices"][0]["message"]["content"], "one ");
  EXPECT_EQ(json::parse(bytes())["usage"]["completion_tokens"], 7);  // up to the token that completed it
  ASSERT_EQ(effects_.cancel.size(), 1u);
  EXPECT_EQ(effects_.cancel[0].key, sequences_[0].key);
}

TEST_F(SessionTest, NeverSendsHalfACharacter) {
  Ask request = ask();
  request.answer.stream = true;
  open(request, {{'a'}});
  step(0, "\xE4\xBD");
  for (const json& frame : frames()) EXPECT_FALSE(frame["choices"][0]["delta"].value("content", "") != "");
  step(0, "\xA0", Finish::length);
  EXPECT_NE(bytes().find("你"), std::string::npos);
}

TEST_F(SessionTest, ChoicesShareAPromptAndAreNumbered) {
  Ask request = ask(Api::completions);
  request.generation.choices = request.generation.best_of = 2;
  request.source.texts = {"ab", "cd"};
  open(request, {{'a', 'b'}, {'c', 'd'}});
  ASSERT_EQ(sequences_.size(), 4u);
  EXPECT_EQ(sequences_[1].parent, sequences_[0].key);
  EXPECT_EQ(sequences_[3].parent, sequences_[2].key);
  EXPECT_EQ(sequences_[2].parent, RequestKey{});
  EXPECT_TRUE(sequences_[1].prompt.empty());
  EXPECT_EQ(sequences_[1].sampling.choice, 1u);
  for (std::size_t i = 0; i < 4; ++i) step(i, std::to_string(i), Finish::length);
  const json answer = json::parse(bytes());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], std::to_string(i));
  }
}

TEST_F(SessionTest, EchoGivesThePromptBack) {
  Ask request = ask(Api::completions);
  request.answer.echo = true;
  request.source.texts = {"ab"};
  open(request, {{'a', 'b'}});
  step(0, "c", Finish::length);
  EXPECT_EQ(json::parse(bytes())["choices"][0]["text"], "abc");
}

TEST_F(SessionTest, AnEchoWithoutOutputAsksForOneTokenAndDropsIt) {
  Ask request = ask(Api::completions);
  request.answer.echo = true;
  request.generation.max_tokens = 0;
  request.source.texts = {"ab"};
  open(request, {{'a', 'b'}});
  EXPECT_EQ(sequences_[0].max_output_tokens, 1);
  step(0, "c", Finish::length);
  const json answer = json::parse(bytes());
  EXPECT_EQ(answer["choices"][0]["text"], "ab");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(SessionTest, AStreamedEchoWithoutOutputSaysNothingOfTheTokenThatItDrops) {
  Ask request = ask(Api::completions);
  request.answer.echo = request.answer.stream = request.answer.return_token_ids = true;
  request.generation.max_tokens = 0;
  request.generation.sampling.logprobs = 0;
  request.source.texts = {"ab"};
  open(request, {{'a', 'b'}});
  StepTokens out;
  out.tokens = {'c'};
  out.scores = {{2, {'c', -1.0f}, 0, 0}};
  SequenceTokens tokens;
  tokens.key = sequences_[0].key;
  tokens.tokens = tokens.scores = 1;
  tokens.finish = Finish::length;
  out.sequences.push_back(tokens);
  book_.take(out, 20, Slice(), effects_);
  ASSERT_EQ(frames().size(), 2u);
  const json last = frames()[1]["choices"][0];
  EXPECT_EQ(last["finish_reason"], "length");
  EXPECT_EQ(last["text"], "");
  EXPECT_EQ(last.dump().find("\"c\""), std::string::npos) << last;
  EXPECT_FALSE(last.contains("completion_token_ids")) << last;
}

TEST_F(SessionTest, AnEchoWithLogprobsWaitsForTheRunOfThePrompt) {
  Ask request = ask(Api::completions);
  request.answer.echo = request.answer.stream = true;
  request.generation.choices = request.generation.best_of = 2;
  request.generation.sampling.logprobs = request.generation.sampling.prompt_logprobs = 0;
  request.source.texts = {"ab"};
  open(request, {{'a', 'b'}});
  step(1, "x", Finish::length);  // the leader was put back: this one ran the prompt for itself
  EXPECT_EQ(bytes(), "");
  StepTokens out;
  out.tokens = {'y'};
  out.scores = {{1, {'b', -2.0f}, 0, 0}, {2, {'y', -1.0f}, 0, 0}};
  SequenceTokens tokens;
  tokens.key = sequences_[0].key;
  tokens.tokens = 1;
  tokens.scores = 2;
  tokens.finish = Finish::length;
  out.sequences.push_back(tokens);
  book_.take(out, 20, Slice(), effects_);
  int echoes = 0;
  for (const json& frame : frames()) {
    const json& choice = frame["choices"][0];
    if (choice["text"] != "ab") continue;
    ++echoes;
    EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 2u) << frame;
  }
  EXPECT_EQ(echoes, 2);
}

TEST_F(SessionTest, ATimeoutBeforeTheFirstTokenIsAnErrorAndCancels) {
  Ask request = ask();
  request.answer.stream = true;
  open(request, {{'a'}});
  book_.expire(5, 30, Slice(), effects_);
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 504);
  EXPECT_EQ(json::parse(bytes())["error"]["code"], "timeout");
  EXPECT_EQ(effects_.cancel, (std::vector<CancelledSequence>{{0, sequences_[0].key}}));
  book_.expire(5, 40, Slice(), effects_);
  EXPECT_EQ(effects_.outputs.size(), 1u) << "it is closed";
}

TEST_F(SessionTest, ATimeoutAfterTheFirstTokenEndsTheAnswerWithWhatItHas) {
  Ask request = ask();
  request.generation.choices = request.generation.best_of = 2;
  request.generation.stop = {"xyz"};
  open(request, {{'a'}});
  step(0, "done", Finish::length);
  step(1, "half x");  // the x may begin a stop string
  book_.expire(5, 30, Slice(), effects_);
  const json answer = json::parse(bytes());
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["choices"][1]["finish_reason"], "timeout");
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "half x");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);
  EXPECT_EQ(effects_.cancel, (std::vector<CancelledSequence>{{0, sequences_[1].key}}));
  EXPECT_EQ(book_.size(), 0u);
}

TEST_F(SessionTest, APoisonousRequestSaysSo) {
  open(ask(), {{'a'}});
  end(0, Finish::poisoned, "It killed two workers.");
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 500);
  EXPECT_EQ(json::parse(bytes())["error"]["code"], "poison_request");
}

TEST_F(SessionTest, AFormThatIsTooComplexNamesItsField) {
  Ask request = ask();
  request.generation.form.param = "guided_regex";
  open(request, {{'a'}});
  step(0, "x");
  end(0, Finish::too_complex, "");
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 400);
  const auto error = json::parse(bytes())["error"];
  EXPECT_EQ(error["code"], "grammar_too_complex");
  EXPECT_EQ(error["param"], "guided_regex");
}

TEST_F(SessionTest, CachedTokensAreCountedOncePerPrompt) {
  Ask request = ask(Api::completions);
  request.generation.choices = request.generation.best_of = 2;
  open(request, {{'a'}, {'b'}});
  for (std::size_t i = 0; i < 4; ++i) step(i, "x", Finish::length, false, i == 0 ? 64 : i == 3 ? 128 : 0);
  EXPECT_EQ(json::parse(bytes())["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
  ASSERT_EQ(effects_.finished.size(), 1u);
  EXPECT_EQ(effects_.finished[0].stats.cached_tokens, 192);
}

TEST_F(SessionTest, TooLongAPromptNamesTheNumbers) {
  open(ask(), {std::vector<TokenId>(64, 'a')});
  EXPECT_TRUE(sequences_.empty());
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 400);
  const json error = json::parse(bytes())["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  const std::string message = error["message"];
  EXPECT_NE(message.find("64"), std::string::npos);
  EXPECT_TRUE(message.starts_with("This model's maximum context length is ")) << message;
}

TEST_F(SessionTest, IdsOutsideTheVocabularyAreRefused) {
  open(ask(Api::completions), {{'a', 258}});
  EXPECT_EQ(json::parse(bytes())["error"]["code"], "token_out_of_range");
}

TEST_F(SessionTest, AnErrorAfterTheFirstByteIsAnEventAndDone) {
  Ask request = ask();
  request.answer.stream = true;
  open(request, {{'a'}});
  step(0, "x");
  end(0, Finish::error, "the worker died");
  EXPECT_NE(bytes().find("the worker died"), std::string::npos);
  EXPECT_TRUE(bytes().ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(effects_.outputs.back().kind, http::Output::Kind::end);
  EXPECT_TRUE(effects_.outputs.back().failed);
  ASSERT_EQ(effects_.finished.size(), 1u);
  EXPECT_FALSE(effects_.finished[0].stats.ok);
}

TEST_F(SessionTest, AnErrorBehindAStopStringHarmsNobody) {
  Ask request = ask();
  request.generation.choices = request.generation.best_of = 2;
  request.generation.stop = {"."};
  open(request, {{'a'}});
  step(0, "done.");
  step(0, "x", Finish::error);  // of the step that was out when it stopped
  EXPECT_TRUE(effects_.outputs.empty());
  step(1, "too", Finish::length);
  const json answer = json::parse(bytes());
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "done");
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "too");
}

TEST_F(SessionTest, AWithdrawnRequestCancelsAllItsSequences) {
  Ask request = ask();
  request.generation.choices = request.generation.best_of = 3;
  open(request, {{'a'}});
  step(1, "x", Finish::length);
  book_.withdraw(5, 30, effects_);
  EXPECT_EQ(effects_.cancel.size(), 2u);
  EXPECT_EQ(book_.size(), 0u);
  step(0, "late");  // finds nobody
  EXPECT_TRUE(effects_.outputs.empty());
}

TEST_F(SessionTest, WithdrawnBeforeItsPromptIsKnownSubmitsNothing) {
  book_.open(ask());
  book_.withdraw(5, 1, effects_);
  const Submit submit = book_.encoded(5, with_prompts({{'a'}}), 2, effects_);
  EXPECT_TRUE(submit.sequences.empty());
}

TEST_F(SessionTest, BadWordsBecomeBiasesOrAnError) {
  Ask request = ask();
  request.generation.bad_words = {"x"};
  book_.open(request);
  EXPECT_EQ(book_.take_encode(5)->bad_words, std::vector<std::string>{"x"});
  Encoded encoded = with_prompts({{'a'}});
  encoded.bans = {{'x', -1e10f}};
  sequences_ = book_.encoded(5, encoded, 10, effects_).sequences;
  ASSERT_EQ(sequences_.size(), 1u);
  ASSERT_EQ(sequences_[0].logit_bias.size(), 1u);
  EXPECT_EQ(sequences_[0].logit_bias[0].token, 'x');

  Ask other = ask();
  other.exchange = 6;
  book_.open(other);
  encoded = {};
  encoded.status = invalid("no single token", "bad_words");
  book_.encoded(6, encoded, 10, effects_);
  EXPECT_EQ(json::parse(effects_.outputs.back().body)["error"]["param"], "bad_words");
}

TEST_F(SessionTest, BestOfKeepsTheLikeliest) {
  Ask request = ask(Api::completions);
  request.generation.choices = 1;
  request.generation.best_of = 2;
  request.source.texts = {"a"};
  open(request, {{'a'}});
  ASSERT_EQ(sequences_.size(), 2u);
  EXPECT_EQ(sequences_[0].sampling.logprobs, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    StepTokens out;
    out.tokens = {static_cast<TokenId>('p' + i)};
    out.scores = {{1, {out.tokens[0], i == 0 ? -3.0f : -1.0f}, 0, 0}};
    SequenceTokens tokens;
    tokens.key = sequences_[i].key;
    tokens.tokens = tokens.scores = 1;
    tokens.finish = Finish::length;
    out.sequences.push_back(tokens);
    book_.take(out, 20, Slice(), effects_);
  }
  const json answer = json::parse(bytes());
  ASSERT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["text"], "q");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
}

}  // namespace
}  // namespace troupe
