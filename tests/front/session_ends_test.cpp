// How an answer ends: min_tokens, and what is reported of its last token.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/byte_tokenizer.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

class SessionEndsTest : public ::testing::Test {
 protected:
  static Ask ask(Api api = Api::chat) {
    Ask out;
    out.exchange = 5;
    out.api = api;
    out.answer.id = "id-1";
    out.answer.model = "m";
    out.generation.stop = {"END"};
    return out;
  }

  /// A prompt of one token.
  void open(Ask request) {
    effects_ = {};
    scored_ = 1;
    Encoded encoded;
    encoded.prompts = {{'a'}};
    book_.open(std::move(request));
    key_ = book_.encoded(5, std::move(encoded), 10, effects_).sequences.at(0).key;
  }

  /// One step of several tokens, each with its log-probability.
  void step(const std::vector<TokenId>& ids, Finish finish = Finish::none) {
    StepTokens out;
    SequenceTokens tokens;
    tokens.key = key_;
    out.tokens = ids;
    for (const TokenId id : ids) {
      out.scores.push_back({scored_++, {id, -0.5f}, static_cast<std::int32_t>(out.tops.size()), 1});
      out.tops.push_back({id, -0.5f});
    }
    tokens.tokens = tokens.scores = static_cast<std::int32_t>(ids.size());
    tokens.finish = finish;
    out.sequences.push_back(tokens);
    book_.take(out, 20, Slice(), effects_);
  }
  void step(const std::string& text) { step(std::vector<TokenId>(text.begin(), text.end())); }

  std::string bytes() const {
    std::string all;
    for (const auto& output : effects_.outputs) all += output.body;
    return all;
  }

  /// The whole answer, or the JSON of every SSE frame but [DONE].
  std::vector<json> parts(bool stream) const {
    const std::string text = bytes();
    if (!stream) return {json::parse(text)};
    std::vector<json> out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find("\n\n", at);
      const std::string frame = text.substr(at + 6, end - at - 6);
      if (frame != "[DONE]") out.push_back(json::parse(frame));
      at = end + 2;
    }
    return out;
  }

  std::shared_ptr<const SessionContext> context_ = std::make_shared<SessionContext>(
      SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
  testing::ServedBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  RequestKey key_;
  std::int32_t scored_ = 1;  // position of the next token
};

TEST_F(SessionEndsTest, AStopStringBeforeMinTokensIsText) {
  Ask request = ask();
  request.generation.sampling.min_tokens = 6;
  open(request);
  step("1END56");
  EXPECT_TRUE(effects_.outputs.empty()) << bytes();
  step("END");
  const json answer = json::parse(bytes());
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "1END56");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 9);
}

TEST_F(SessionEndsTest, AStopStringThatALaterTokenCompletesCounts) {
  Ask request = ask();
  request.generation.sampling.min_tokens = 3;
  open(request);
  step("xEN");  // min_tokens are there; the string is complete with the fourth
  step("Dy");
  EXPECT_EQ(json::parse(bytes())["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(json::parse(bytes())["usage"]["completion_tokens"], 4);
}

// Usage, ids and log-probabilities agree, whatever ended the answer and in whatever form it is given.
TEST_F(SessionEndsTest, EveryTokenHasAnIdAndALogprob) {
  struct Row {
    const char* what;
    std::vector<TokenId> ids;
    Finish finish;
    std::size_t counted;  // up to the token that ended the answer
    const char* text;
  };
  const Row rows[] = {
      {"the end token", {'h', 'i', ByteTokenizer::kEos}, Finish::stop, 3, "hi"},
      {"a stop string that cuts tokens off", {'h', 'i', 'E', 'N', 'D', '!'}, Finish::none, 5, "hi"},
      {"the length", {'h', 'i'}, Finish::length, 2, "hi"},
      {"the end token at once", {ByteTokenizer::kEos}, Finish::stop, 1, ""}};
  for (const Row& row : rows) {
    for (const Api api : {Api::chat, Api::completions}) {
      for (const bool stream : {false, true}) {
        SCOPED_TRACE(std::string(row.what) + (api == Api::chat ? ", chat" : ", completion") +
                     (stream ? ", streamed" : ""));
        Ask request = ask(api);
        request.source.texts = {"a"};
        request.answer.stream = request.answer.include_usage = stream;
        request.answer.return_token_ids = true;
        request.generation.sampling.logprobs = 1;
        open(request);
        step(row.ids, row.finish);
        std::vector<json> ids, tokens;
        std::string text;
        std::size_t used = 0;
        for (const json& part : parts(stream)) {
          if (part.contains("usage") && !part["usage"].is_null()) used = part["usage"]["completion_tokens"];
          if (part["choices"].empty()) continue;
          const json& choice = part["choices"][0];
          const json& words = choice.contains("message") ? choice["message"]
                              : choice.contains("delta") ? choice["delta"]
                                                         : choice;
          text += words.value(api == Api::chat ? "content" : "text", "");
          const json& with_ids = words.contains("completion_token_ids") ? words : choice;
          for (const json& id : with_ids.value("completion_token_ids", json::array())) ids.push_back(id);
          if (choice["logprobs"].is_null()) continue;
          for (const json& entry : choice["logprobs"][api == Api::chat ? "content" : "tokens"]) {
            tokens.push_back(api == Api::chat ? entry["token"] : entry);
          }
        }
        EXPECT_EQ(text, row.text);
        EXPECT_EQ(used, row.counted);
        ASSERT_EQ(ids.size(), row.counted) << bytes();
        ASSERT_EQ(tokens.size(), row.counted) << bytes();
        for (std::size_t i = 0; i < row.counted; ++i) {
          EXPECT_EQ(ids[i], row.ids[i]);
          EXPECT_EQ(tokens[i], std::string(context_->texts->token_bytes(row.ids[i])));
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe
