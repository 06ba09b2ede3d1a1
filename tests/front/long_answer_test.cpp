// Answers that one request makes large: they are bounded before anything runs, and written in slices.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/tokenizer/encoder.h"
#include "support/byte_tokenizer.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

constexpr std::int32_t kModelLen = 20'000;
constexpr std::int32_t kPrompt = 3000;
constexpr std::int32_t kTop = 5;

class LongAnswerTest : public ::testing::Test {
 protected:
  static Ask ask(bool stream, bool echo, std::int32_t choices) {
    Ask out;
    out.exchange = 5;
    out.api = Api::completions;
    out.answer.id = "id";
    out.answer.model = "m";
    out.answer.stream = stream;
    out.answer.echo = echo;
    out.generation.choices = choices;
    out.generation.max_tokens = 2;
    out.generation.sampling.logprobs = out.generation.sampling.prompt_logprobs = kTop;
    return out;
  }

  void make_book(AnswerBounds bounds = {}) {
    context_ = std::make_shared<SessionContext>(
        SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, kModelLen, 258, {}, bounds});
    book_ = std::make_unique<testing::ServedBook>(context_, KeySource({1, 0}));
    effects_ = {};
  }

  Submit open(Ask request, std::int32_t prompt_tokens = kPrompt) {
    const std::uint64_t exchange = request.exchange;
    Encoded encoded;
    encoded.prompts.emplace_back(static_cast<std::size_t>(prompt_tokens), 'p');
    if (request.answer.echo)
      encoded.texts.push_back({std::string(static_cast<std::size_t>(prompt_tokens), 'p'), prompt_tokens});
    book_->open(std::move(request));
    return book_->encoded(exchange, std::move(encoded), 10, effects_);
  }

  /// What the scheduler would tell: the prompt's scores with the leader, two tokens each, and the end.
  static StepTokens all_of(const Submit& submit) {
    StepTokens step;
    const auto score = [&](std::int32_t position) {
      PositionLogprobs scores{position, {'p', -0.25f}, static_cast<std::int32_t>(step.tops.size()), kTop};
      for (std::int32_t i = 0; i < kTop; ++i) step.tops.push_back({'a' + i, -1.5f * static_cast<float>(i)});
      step.scores.push_back(scores);
    };
    for (const SequenceSpec& sequence : submit.sequences) {
      SequenceTokens tokens;
      tokens.key = sequence.key;
      tokens.first_token = static_cast<std::int32_t>(step.tokens.size());
      tokens.tokens = 2;
      tokens.first_score = static_cast<std::int32_t>(step.scores.size());
      tokens.finish = Finish::length;
      for (std::int32_t at = sequence.prompt.empty() ? sequence.prompt_tokens : 1;
           at < sequence.prompt_tokens + 2; ++at)
        score(at);
      tokens.scores = static_cast<std::int32_t>(step.scores.size()) - tokens.first_score;
      step.tokens.insert(step.tokens.end(), {'o', 'k'});
      step.sequences.push_back(tokens);
    }
    return step;
  }

  /// The bytes of the answer, and in how many turns it was written.
  std::pair<std::string, int> answer(const Ask& request, std::int64_t slice_ns) {
    make_book();
    const Submit submit = open(request);
    const auto slice = [&] { return slice_ns > 0 ? Slice(now_ns() + slice_ns) : Slice(); };
    book_->take(all_of(submit), 20, slice(), effects_);
    int turns = 1;
    while (!effects_.unfinished.empty()) {
      const auto unfinished = std::exchange(effects_.unfinished, {});
      EXPECT_EQ(unfinished, std::vector<std::uint64_t>{5});
      book_->resume(5, 30, slice(), effects_);
      ++turns;
    }
    EXPECT_EQ(book_->size(), 0u);
    std::string bytes;
    for (const http::Output& output : effects_.outputs) {
      bytes += output.body;
      for (const std::string& part : output.more) bytes += part;
    }
    return {bytes, turns};
  }

  std::string error_code() {
    if (effects_.outputs.empty()) return "";
    return json::parse(effects_.outputs.back().body)["error"]["code"];
  }

  std::shared_ptr<const SessionContext> context_;
  std::unique_ptr<testing::ServedBook> book_;
  Effects effects_;
};

/// Counts the tokens that are turned to text.
class CountingTokenizer final : public ByteTokenizer {
 public:
  std::string_view token_bytes(TokenId id) const override {
    ++asked;
    return ByteTokenizer::token_bytes(id);
  }
  mutable std::size_t asked = 0;
};

// Ids that are repeated are turned to text by TOKENIZER, not in a turn of the SESSION HOST.
TEST_F(LongAnswerTest, OpeningASessionTurnsNoIdsToText) {
  const auto tokenizer = std::make_shared<CountingTokenizer>();
  const SessionContext context{tokenizer, {ByteTokenizer::kEos}, kModelLen, 258, {}, {}};
  testing::ServedBook book(std::make_shared<SessionContext>(context), KeySource({1, 0}));
  Ask request = ask(/*stream=*/true, /*echo=*/true, 1);
  request.generation.sampling.logprobs = request.generation.sampling.prompt_logprobs = -1;
  request.source.keep_tokens = 2500;
  request.source.ids.emplace_back(3000, 'p');
  book.open(std::move(request));
  Encoded encoded = Encoder(tokenizer, nullptr).encode(*book.take_encode(5));
  EXPECT_EQ(std::exchange(tokenizer->asked, 0), 2500u);
  Effects effects;
  const Submit submit = book.encoded(5, std::move(encoded), 10, effects);
  EXPECT_EQ(tokenizer->asked, 0u);
  StepTokens step;
  SequenceTokens tokens;
  tokens.key = submit.sequences.at(0).key;
  tokens.finish = Finish::length;
  tokens.tokens = 1;
  step.tokens = {'x'};
  step.sequences.push_back(tokens);
  book.take(step, 20, Slice(), effects);
  std::string bytes;
  for (const http::Output& output : effects.outputs) bytes += output.body;
  EXPECT_NE(bytes.find('"' + std::string(2500, 'p') + '"'), bytes.npos);
}

TEST_F(LongAnswerTest, IsTheSameInSlices) {
  for (const bool echo : {false, true}) {
    const Ask request = ask(/*stream=*/false, echo, 4);
    const auto [whole, one] = answer(request, 0);
    EXPECT_EQ(one, 1);
    const auto [sliced, turns] = answer(request, 50'000);
    EXPECT_GT(turns, 5);
    EXPECT_TRUE(sliced == whole);
    const json body = json::parse(whole);
    ASSERT_EQ(body["choices"].size(), 4u);
    for (const json& choice : body["choices"]) {
      const json& scores = echo ? choice["logprobs"]["tokens"] : choice["prompt_logprobs"];
      EXPECT_EQ(scores.size(), static_cast<std::size_t>(echo ? kPrompt + 2 : kPrompt));
      EXPECT_EQ(choice["logprobs"]["top_logprobs"].size(),
                scores.size() + (echo ? 0 : 2) - (echo ? 0 : kPrompt));
      EXPECT_EQ(choice["logprobs"]["text_offset"].back(), echo ? kPrompt + 1 : 1);
    }
  }
}

TEST_F(LongAnswerTest, AStreamTellsItsEchoesInSlices) {
  const Ask request = ask(/*stream=*/true, /*echo=*/true, 8);
  const auto [whole, one] = answer(request, 0);
  EXPECT_EQ(one, 1);
  const auto [sliced, turns] = answer(request, 50'000);
  EXPECT_GT(turns, 3);
  EXPECT_TRUE(sliced.ends_with("data: [DONE]\n\n"));
  const auto events_of = [](const std::string& bytes, int index) {
    std::vector<std::string> events;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t end = bytes.find("\n\n", at);
      const std::string event = bytes.substr(at, end - at);
      if (event.find("\"index\":" + std::to_string(index) + ",") != event.npos) events.push_back(event);
      at = end + 2;
    }
    return events;
  };
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(events_of(whole, i).size(), 2u);
    EXPECT_TRUE(events_of(whole, i) == events_of(sliced, i)) << i;
  }
}

TEST_F(LongAnswerTest, AClientThatLeavesMeanwhileEndsTheWriting) {
  make_book();
  const Submit submit = open(ask(false, false, 32));
  book_->take(all_of(submit), 20, Slice(1), effects_);
  ASSERT_EQ(effects_.unfinished.size(), 1u);
  book_->withdraw(5, 30, effects_);
  EXPECT_EQ(book_->size(), 0u);
  book_->resume(5, 40, Slice(), effects_);
  EXPECT_TRUE(effects_.outputs.empty());
}

TEST_F(LongAnswerTest, ScoresAreBoundedBeforeAnythingRuns) {
  AnswerBounds bounds;
  bounds.scores = 40'000;
  make_book(bounds);
  Ask request = ask(false, false, 2);  // 2 × (3000 + 2) × 6 = 36,024
  EXPECT_EQ(open(request).sequences.size(), 2u);
  request.exchange = 6;
  request.generation.choices = 3;
  EXPECT_TRUE(open(request).sequences.empty());
  EXPECT_EQ(error_code(), "too_many_scores");
  const std::string message = json::parse(effects_.outputs.back().body)["error"]["message"];
  for (const char* part : {"54036", "40000", "--max-answer-scores", "n = 3"})
    EXPECT_NE(message.find(part), message.npos) << part;
  request.exchange = 7;
  request.generation.sampling.logprobs = -1;
  EXPECT_TRUE(open(request).sequences.empty());
  EXPECT_EQ(json::parse(effects_.outputs.back().body)["error"]["param"], "prompt_logprobs");
  request.exchange = 8;
  request.generation.sampling.prompt_logprobs = -1;  // without scores nothing is counted
  EXPECT_EQ(open(request).sequences.size(), 3u);
}

TEST_F(LongAnswerTest, WithoutMaxTokensThereAreAsManyAsTheScoresAllow) {
  AnswerBounds bounds;
  bounds.scores = 40'000;
  make_book(bounds);
  Ask request = ask(false, false, 2);
  request.generation.max_tokens = -1;
  const Submit submit = open(request);
  ASSERT_EQ(submit.sequences.size(), 2u);
  EXPECT_EQ(submit.sequences[0].max_output_tokens, (40'000 - 36'000) / 12);
}

TEST_F(LongAnswerTest, WhatAnAnswerRepeatsIsBounded) {
  AnswerBounds bounds;
  bounds.answer_bytes = 10'000;
  make_book(bounds);
  Ask request = ask(true, true, 3);
  request.generation.sampling.logprobs = request.generation.sampling.prompt_logprobs = -1;
  EXPECT_EQ(open(request).sequences.size(), 3u);
  request.exchange = 6;
  request.generation.choices = 4;
  EXPECT_TRUE(open(request).sequences.empty());
  EXPECT_EQ(error_code(), "answer_too_large");
  EXPECT_EQ(json::parse(effects_.outputs.back().body)["error"]["param"], "n");
}

TEST_F(LongAnswerTest, AWholeAnswerEndsWhereItsBytesDo) {
  AnswerBounds bounds;
  bounds.answer_bytes = 100'000;
  make_book(bounds);
  const Submit submit = open(ask(false, false, 2));
  ASSERT_EQ(submit.sequences.size(), 2u);
  book_->take(all_of(submit), 20, Slice(), effects_);
  EXPECT_EQ(error_code(), "answer_too_large");
  EXPECT_EQ(effects_.outputs.back().status, 400);
}

}  // namespace
}  // namespace troupe
