// A chat request's text to ids.
#include "actors/tokenizer/encoder.h"

#include <gtest/gtest.h>

#include <string>

#include "support/thrown_fault.h"

namespace troupe {
namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
  auto loaded = Tokenizer::load(std::string(TROUPE_TEST_DATA) + "/text/byte_level");
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  return loaded.ok() ? *loaded : nullptr;
}

std::shared_ptr<const ChatTemplate> chat(const std::string& source) {
  auto compiled = ChatTemplate::compile(source);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message;
  return compiled.ok() ? *compiled : nullptr;
}

http::Json parsed(const std::string& text) {
  auto json = http::parse_json(text, {.depth = 64, .elements = 1'000'000});
  EXPECT_TRUE(json.ok()) << json.status().message;
  return json.ok() ? *std::move(json) : http::Json();
}

TEST(Encoder, RendersMessagesInTheOrderOfTheirKeys) {
  const Encoder encoder(tokenizer(), chat("{% for k in messages[0] %}{{ k }} {% endfor %}"));
  Encode job;
  job.source.conversation.messages =
      parsed(R"([{"role": "user", "content": [{"type": "text", "text": "a"}], "b": 1, "a": 2}])");
  const Encoded encoded = encoder.encode(job);
  ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
  EXPECT_EQ(encoded.prompts.at(0), encoder.tokenizer()->encode("role content b a ", SpecialTokens::plain));
}

TEST(Encoder, TellsTheTextOfPromptsThatAreRepeated) {
  const Encoder encoder(tokenizer(), nullptr, bounds_of(*tokenizer(), 8));
  Encode job;
  job.api = Api::completions;
  job.source.texts = {"caf\u00e9"};
  job.source.ids = {encoder.tokenizer()->encode("tea", SpecialTokens::plain), std::vector<TokenId>(9, 40)};
  EXPECT_TRUE(encoder.encode(job).texts.empty()) << "without echo";
  job.echo = true;
  job.echo_tokens = 100;
  const Encoded encoded = encoder.encode(job);
  ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
  ASSERT_EQ(encoded.prompts.size(), 3u);
  ASSERT_EQ(encoded.texts.size(), 3u);
  EXPECT_EQ(encoded.texts[0].text, "caf\u00e9");
  EXPECT_EQ(encoded.texts[0].chars, 4);
  EXPECT_EQ(encoded.texts[1].text, "tea");
  EXPECT_EQ(encoded.texts[1].chars, 3);
  EXPECT_EQ(encoded.texts[2].text, "") << "it has more tokens than the model takes";
}

TEST(Encoder, APredictionIsTextOfTheModelsOwn) {
  const Encoder encoder(tokenizer(), nullptr, bounds_of(*tokenizer(), 8));
  Encode job;
  job.api = Api::completions;
  job.source.texts = {"tea"};
  EXPECT_TRUE(encoder.encode(job).prediction.empty());
  job.source.prediction = "tea </s>";
  EXPECT_EQ(encoder.encode(job).prediction, encoder.tokenizer()->encode("tea </s>", SpecialTokens::plain));
  for (int i = 0; i < 2000; ++i) job.source.prediction += "\u00e9";
  const Encoded encoded = encoder.encode(job);
  EXPECT_TRUE(encoded.status.ok()) << encoded.status.message;
  EXPECT_EQ(encoded.prediction.size(), 8u) << "as many as the model takes";
  EXPECT_EQ(encoded.prompts.size(), 1u);
}

// A text that cannot fit is refused by its bytes; where they could fit, by its tokens, later.
TEST(Encoder, RefusesATextWithMoreBytesThanTheModelHasRoomForBeforeReadingIt) {
  const EncoderBounds bounds = bounds_of(*tokenizer(), 100);
  EXPECT_EQ(bounds.max_model_len, 100);
  EXPECT_GE(bounds.max_text_bytes, 100u);
  const Encoder encoder(tokenizer(), chat("{{ messages[0].content }}"), bounds);
  const std::string fits(bounds.max_text_bytes, 'a');
  for (const Api api : {Api::completions, Api::tokenize}) {
    Encode job;
    job.api = api;
    job.source.texts = {fits};
    EXPECT_TRUE(encoder.encode(job).status.ok());
    job.source.texts = {"short", fits + 'a'};
    const Encoded encoded = encoder.encode(job);
    EXPECT_EQ(encoded.status.ok(), api == Api::tokenize) << "only counting takes any length";
    if (api == Api::tokenize) continue;
    EXPECT_EQ(encoded.status.reason, "context_length_exceeded");
    EXPECT_EQ(encoded.status.param, "prompt");
    EXPECT_TRUE(encoded.prompts.empty());
  }
  Encode job;
  job.source.conversation.messages = parsed(R"([{"role": "user", "content": ")" + fits + R"(a"}])");
  EXPECT_EQ(encoder.encode(job).status.reason, "context_length_exceeded");
  job.source.conversation.messages = parsed(R"([{"role": "user", "content": ")" + fits + R"("}])");
  EXPECT_TRUE(encoder.encode(job).status.ok());
}

TEST(Encoder, BansWordsThatAreOneToken) {
  const Encoder encoder(tokenizer(), nullptr);
  Encode job;
  job.api = Api::completions;
  job.source.texts = {"hello"};
  job.bad_words = {"a"};
  const Encoded banned = encoder.encode(job);
  ASSERT_TRUE(banned.status.ok()) << banned.status.message;
  ASSERT_FALSE(banned.bans.empty());
  EXPECT_EQ(banned.bans[0].token, encoder.tokenizer()->encode("a", SpecialTokens::plain).at(0));
  job.bad_words = {"a", "certainly more than one token"};
  EXPECT_EQ(encoder.encode(job).status.param, "bad_words");
}

TEST(Encoder, AnswersWhatIsOnlyCounted) {
  const Encoder encoder(tokenizer(), nullptr, bounds_of(*tokenizer(), 77));
  Encode job;
  job.api = Api::tokenize;
  job.source.texts = {"hello"};
  job.token_strs = true;
  const http::Json counted = parsed(encoder.encode(job).answer);
  EXPECT_EQ(counted["max_model_len"], 77);
  EXPECT_EQ(counted["tokens"].size(), counted["token_strs"].size());
  job.api = Api::count_tokens;
  EXPECT_EQ(parsed(encoder.encode(job).answer)["input_tokens"], counted["count"]);
  Encode back;
  back.api = Api::detokenize;
  back.source.ids = {encoder.tokenizer()->encode("hello", SpecialTokens::plain)};
  EXPECT_EQ(parsed(encoder.encode(back).answer)["prompt"], "hello");
}

// A model may have rows without a text behind those of its tokenizer. Which ids a request may name is checked
// where it comes in.
TEST(Encoder, TakesIdsWithoutAText) {
  const Encoder encoder(tokenizer(), nullptr);
  const TokenId without_text = encoder.tokenizer()->vocab_size();
  Encode job;
  job.api = Api::completions;
  job.echo = true;
  job.echo_tokens = 10;
  job.source.ids = {{without_text}, {-1, 1 << 30}};
  const Encoded encoded = encoder.encode(job);
  ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
  EXPECT_EQ(encoded.prompts, job.source.ids);
  ASSERT_EQ(encoded.texts.size(), 2u);
  EXPECT_EQ(encoded.texts[0].text, "");
  job.api = Api::detokenize;
  EXPECT_EQ(parsed(encoder.encode(job).answer)["prompt"], "");
}

TEST(Encoder, AMessageOfManyKeysCostsTheirNumberNotItsSquare) {
  const Encoder encoder(tokenizer(), chat("{{ messages[0].content }}"));
  Encode job;
  std::string messages = R"([{"role": "user", "content": "hello")";
  for (int i = 0; i < 500'000; ++i) messages += ",\"k" + std::to_string(i) + "\":0";
  job.source.conversation.messages = parsed(messages + "}]");
  const Encoded encoded = encoder.encode(job);  // quadratic work would outlast the test's timeout
  ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
  EXPECT_EQ(encoded.prompts.at(0), encoder.tokenizer()->encode("hello", SpecialTokens::plain));
}

TEST(Encoder, AFaultIsTheRequestsOwn) {
  const Encoder encoder(tokenizer(), nullptr);
  Encode job;
  job.api = Api::completions;
  job.source.texts = {"tea"};
  const testing::ThrownFault fault("tokenizer");
  EXPECT_EQ(encoder.encode(job).status.code, Code::internal);
  EXPECT_TRUE(encoder.encode(job).status.ok());
}

}  // namespace
}  // namespace troupe
