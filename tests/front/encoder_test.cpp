// A chat request's text to ids.
#include "actors/tokenizer/encoder.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace troupe
