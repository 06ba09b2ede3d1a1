// Chats whose answers have thoughts and tool calls, through a session.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "support/parsing_context.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

const char kThought[] = "why\n</think>\n\n<response>\nhi END\n</response>\n";
const char kTwoCalls[] =
    "why</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"你\"}}\n</tool_call>\n<tool_call>\n"
    "{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n";

class AnswerPartsTest : public ::testing::Test {
 protected:
  Ask ask(bool stream = false) const {
    Ask out;
    out.exchange = 5;
    out.answer.id = "id-1";
    out.answer.stream = stream;
    out.answer.include_usage = stream;
    out.generation.limits.tools = true;
    return out;
  }

  void open(Ask request, const std::string& prompt = "q<think>\n") {
    book_.open(std::move(request));
    Encoded encoded;
    encoded.prompts = {testing::parsing_ids(prompt)};
    sequences_ = book_.encoded(5, std::move(encoded), 10, effects_).sequences;
  }

  /// One step of a sequence, each token with its logprob.
  void step(std::size_t sequence, const std::vector<TokenId>& ids, Finish finish = Finish::none) {
    StepTokens out;
    SequenceTokens tokens;
    tokens.key = sequences_[sequence].key;
    tokens.tokens = tokens.scores = static_cast<std::int32_t>(ids.size());
    tokens.finish = finish;
    out.tokens = ids;
    for (const TokenId id : ids)
      out.scores.push_back({sequences_[sequence].prompt_tokens, {id, -1.0f}, 0, 0});
    out.sequences.push_back(tokens);
    book_.take(out, 20, Slice(), effects_);
  }

  /// The model writes this, `at_once` tokens a step, and then its end token.
  void write(std::size_t sequence, const std::string& text, std::size_t at_once = 1) {
    std::vector<TokenId> ids = testing::parsing_ids(text);
    ids.push_back(ByteTokenizer::kEos);
    for (std::size_t i = 0; i < ids.size(); i += at_once) {
      const std::size_t end = std::min(i + at_once, ids.size());
      const bool last = end == ids.size();
      step(sequence,
           {ids.begin() + static_cast<std::ptrdiff_t>(i), ids.begin() + static_cast<std::ptrdiff_t>(end)},
           last ? Finish::stop : Finish::none);
    }
  }

  json whole() const {
    EXPECT_EQ(effects_.outputs.size(), 1u);
    return effects_.outputs.empty() ? json() : json::parse(effects_.outputs[0].body);
  }

  /// The messages that a client joins from the stream, by choice, and the last chunk.
  std::map<int, json> joined(json& last) const {
    std::map<int, json> messages;
    std::string all;
    for (const auto& output : effects_.outputs) all += output.body;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find("\n\n", at);
      const std::string frame = all.substr(at + 6, end - at - 6);
      at = end + 2;
      if (frame == "[DONE]") continue;
      last = json::parse(frame);
      for (const json& choice : last["choices"]) join(messages[choice["index"]], choice);
    }
    return messages;
  }

  static void join(json& message, const json& choice) {
    const json& delta = choice["delta"];
    if (message.is_null()) message = json::object();
    for (const char* part : {"content", "reasoning_content", "reasoning"}) {
      if (delta.contains(part)) message[part] = message.value(part, "") + delta[part].get<std::string>();
    }
    for (const json& call : delta.value("tool_calls", json::array())) {
      json& known = message["tool_calls"][call["index"].get<std::size_t>()];
      if (call.contains("id")) {
        EXPECT_TRUE(known.is_null()) << "a call has its id once";
        known = {{"id", call["id"]},
                 {"type", call["type"]},
                 {"function", {{"name", call["function"]["name"]}, {"arguments", ""}}}};
      }
      known["function"]["arguments"] = known["function"]["arguments"].get<std::string>() +
                                       call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
    if (!choice["logprobs"].is_null()) {
      for (const json& token : choice["logprobs"]["content"]) message["tokens"].push_back(token["token"]);
    }
  }

  std::shared_ptr<const SessionContext> context_ = testing::parsing_context();
  testing::ServedBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  std::vector<SequenceSpec> sequences_;
};

TEST_F(AnswerPartsTest, ThoughtsAndAnswerAreApart) {
  open(ask());
  write(0, kThought);
  const json answer = whole();
  const json message = answer["choices"][0]["message"];
  EXPECT_EQ(message["content"], "hi END");
  EXPECT_EQ(message["reasoning_content"], "why");
  EXPECT_EQ(message["reasoning"], "why");
  EXPECT_EQ(message["tool_calls"], nullptr);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4 + 1 + 2 + 1 + 8 + 1 + 1 + 1);
}

TEST_F(AnswerPartsTest, CallsHaveIdsAndEndTheAnswer) {
  open(ask());
  write(0, kTwoCalls);
  const json choice = whole()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  const json calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["function"], json::parse(R"({"name":"f","arguments":"{\"a\": \"你\"}"})"));
  EXPECT_EQ(calls[1]["function"], json::parse(R"({"name":"g","arguments":"{}"})"));
  for (const json& call : calls) {
    const std::string id = call["id"];
    EXPECT_TRUE(id.starts_with("chatcmpl-tool-")) << id;
    EXPECT_EQ(id.size(), 14u + 32u) << id;
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 14), std::string::npos) << id;
  }
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(AnswerPartsTest, AStreamJoinsToTheWholeAnswerOfEachChoice) {
  Ask request = ask();
  request.generation.choices = request.generation.best_of = 2;
  open(request);
  write(0, kTwoCalls);
  write(1, kThought);
  const json all = whole();
  for (const std::size_t at_once : {1, 3, 1000}) {
    effects_ = {};
    request.answer.stream = request.answer.include_usage = true;
    open(request);
    write(0, kTwoCalls, at_once);
    write(1, kThought, at_once);
    json last;
    const auto messages = joined(last);
    ASSERT_EQ(messages.size(), 2u);
    for (const auto& [index, message] : messages) {
      const json& expected = all["choices"][static_cast<std::size_t>(index)];
      EXPECT_EQ(message["content"],
                expected["message"]["content"].is_null() ? "" : expected["message"]["content"]);
      EXPECT_EQ(message["reasoning_content"], expected["message"]["reasoning_content"]);
      EXPECT_EQ(message["reasoning"], expected["message"]["reasoning"]);
      EXPECT_EQ(message["finish_reason"], expected["finish_reason"]);
      const json& calls = expected["message"]["tool_calls"];
      ASSERT_EQ(message.contains("tool_calls"), !calls.is_null());
      for (std::size_t i = 0; i < calls.size(); ++i)
        EXPECT_EQ(message["tool_calls"][i]["function"], calls[i]["function"]);
    }
    EXPECT_EQ(last["usage"], all["usage"]);
  }
}

TEST_F(AnswerPartsTest, LogprobsOfTagsThoughtsAndCallsAreNotLost) {
  Ask request = ask(true);
  request.generation.sampling.logprobs = 0;
  open(request);
  write(0, kTwoCalls, 2);
  json last;
  const auto messages = joined(last);
  std::string text;
  for (const json& token : messages.at(0)["tokens"])
    text += token.get<std::string>().size() > 3 ? token.get<std::string>() : "";
  EXPECT_EQ(text, "</think><tool_call></tool_call><tool_call></tool_call></s>");
  EXPECT_EQ(messages.at(0)["tokens"].size(), last["usage"]["completion_tokens"].get<std::size_t>());
}

TEST_F(AnswerPartsTest, StopStringsActOnTheTextAlone) {
  Ask request = ask();
  request.generation.stop = {"why", "END", "name"};
  open(request);
  write(0, kThought);
  EXPECT_EQ(whole()["choices"][0]["message"]["content"], "hi ");
  EXPECT_EQ(whole()["choices"][0]["message"]["reasoning"], "why");
  EXPECT_EQ(effects_.cancel.size(), 1u);
  effects_ = {};
  open(request);
  write(0, kTwoCalls);
  EXPECT_EQ(whole()["choices"][0]["message"]["tool_calls"].size(), 2u);
}

TEST_F(AnswerPartsTest, WithoutParallelCallsTheFirstOneIsTheLast) {
  Ask request = ask();
  request.generation.limits.parallel_calls = false;
  request.answer.function_call = true;
  open(request);
  write(0, kTwoCalls);
  const json choice = whole()["choices"][0];
  EXPECT_EQ(choice["message"]["function_call"]["name"], "f");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "function_call");
  EXPECT_EQ(effects_.cancel.size(), 1u);
}

TEST_F(AnswerPartsTest, TheAnswerBehindTheThoughtsHasALimitOfItsOwn) {
  Ask request = ask();
  request.generation.limits.response = 6;
  open(request);
  EXPECT_EQ(sequences_[0].max_output_tokens, 1000 - 3) << "thoughts are not counted";
  write(0, kThought);
  EXPECT_EQ(whole()["choices"][0]["message"]["content"], "hi");
  EXPECT_EQ(whole()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole()["usage"]["completion_tokens"], 4 + 1 + 6);
  EXPECT_EQ(effects_.cancel.size(), 1u);
  effects_ = {};
  open(request, "q<think>\n</think>");
  EXPECT_EQ(sequences_[0].max_output_tokens, 6) << "there are no thoughts";
}

TEST_F(AnswerPartsTest, AnAnswerBeginsWhereItsPromptEnds) {
  open(ask(), "q<think>\n\n</think>\n\n");
  write(0, "\nhello");
  EXPECT_EQ(whole()["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(whole()["choices"][0]["message"]["reasoning"], nullptr);
  EXPECT_EQ(whole()["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(AnswerPartsTest, ACutAnswerKeepsWhatItHas) {
  open(ask());
  step(0, testing::parsing_ids("why\n"), Finish::length);
  EXPECT_EQ(whole()["choices"][0]["message"]["reasoning"], "why\n");
  EXPECT_EQ(whole()["choices"][0]["finish_reason"], "length");
  effects_ = {};
  open(ask());
  step(0, testing::parsing_ids("w</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a"), Finish::length);
  EXPECT_EQ(whole()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a");
  EXPECT_EQ(whole()["choices"][0]["finish_reason"], "length");
}

TEST_F(AnswerPartsTest, HalfACharacterBeforeATagBelongsToWhatIsBeforeIt) {
  open(ask());
  write(0, "\xE4\xBD</think><response>a</response>");
  EXPECT_EQ(whole()["choices"][0]["message"]["reasoning"], "\uFFFD");
  EXPECT_EQ(whole()["choices"][0]["message"]["content"], "a");
}

TEST_F(AnswerPartsTest, CompletionsAreRaw) {
  Ask request = ask();
  request.api = Api::completions;
  open(request);
  write(0, "a</think>b");
  EXPECT_EQ(whole()["choices"][0]["text"], "ab");
}

TEST_F(AnswerPartsTest, TheLimitOfThoughtsReachesTheScheduler) {
  const TokenId end = *context_->texts->token_id("</think>");
  const auto thinking = [&](auto change, const std::string& prompt = "q<think>\n") {
    Generation generation;
    change(generation);
    return begin_answer(*context_, testing::parsing_ids(prompt), generation).thinking;
  };
  Thinking open = thinking([](Generation&) {});
  EXPECT_TRUE(open.open);
  EXPECT_EQ(open.end, end);
  EXPECT_EQ(open.budget, -1);
  EXPECT_EQ(open.forced, (std::vector<TokenId>{'\n', end}));
  // The newline before </think> counts as a thought.
  EXPECT_EQ(thinking([](Generation& g) { g.limits.thinking = 10; }).budget, 9);
  EXPECT_EQ(thinking([](Generation& g) { g.limits.thinking = 0; }).budget, 0);
  EXPECT_EQ(thinking([](Generation& g) { g.limits.thinking_share = 0.5, g.max_tokens = 100; }).budget, 49);
  EXPECT_EQ(thinking([](Generation& g) { g.limits.thinking_share = 0.2; }).budget, 198)
      << "of the model's length";
  EXPECT_EQ(thinking([](Generation& g) { g.limits.thinking = 100, g.max_tokens = 100; }).budget, -1)
      << "never reached";
  const Thinking closed = thinking([](Generation& g) { g.limits.thinking = 10; }, "q<think></think>");
  EXPECT_EQ(closed.end, -1);
  EXPECT_EQ(closed.budget, -1);
}

}  // namespace
}  // namespace troupe
