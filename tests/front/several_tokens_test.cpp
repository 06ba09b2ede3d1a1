// Steps that yield several tokens of a sequence: the answer is that of one token a step, in every API.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "support/parsing_context.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

/// What a model writes, and how its client reads it.
struct Case {
  std::string name;
  std::string text;
  Finish finish = Finish::stop;
  std::vector<std::string> stop = {};
  bool include_stop = false;
  std::int32_t min_tokens = 0;
  std::int32_t response_tokens = -1;
  bool parallel_calls = true;
  bool tools = true;
};

std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

const Case kCases[] = {
    {"Text", "plain text, 你好 and \xF0\x9F\x8E\xAD.\n\nbye"},
    {"Length", "cut in a \xE4\xBD", Finish::length},
    {"Thoughts", "why\n</think>\n\n<response>\nhi END\n</response>\n"},
    {"Calls",
     "why\n</think>\nhi 你\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
     "\"\\\"你\"}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\nbye"},
    {"ShortCalls",
     "</think>a<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>b<tool_call>{\"name\":\"g\","
     "\"arguments\":{\"b\":1}}</tool_call>c<tool_call>{\"name\":\"h\"}</tool_call>"},
    {"OneCallAtMost",
     "</think><tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1]}}</tool_call><tool_call>{\"name\": "
     "\"g\", "
     "\"arguments\": {}}</tool_call>",
     Finish::stop,
     {},
     false,
     0,
     -1,
     false},
    {"NoCall", "</think>\nsee <tool_call>not json</tool_call> there"},
    {"Stop", "one two\n\nEND three", Finish::length, {"END"}},
    {"StopInside", "</think>abcdefgh", Finish::stop, {"cde", "efg"}},
    {"StopIsShown", "</think>abcdefgh", Finish::stop, {"cd"}, true},
    {"StopTooEarly", "</think>aXbXcX", Finish::stop, {"X"}, false, 4},
    {"StopIsCut", "</think>what ends in EN", Finish::stop, {"END"}},
    {"StopBehindACall",
     "</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>xENDy",
     Finish::stop,
     {"END"}},
    {"ShortResponse", "long thoughts</think>\nan answer of more tokens", Finish::stop, {}, false, 0, 7},
    {"WithoutTools", "</think>a<tool_call>b</tool_call>c", Finish::length, {}, false, 0, -1, true, false},
};

struct Outcome {
  json answer;
  std::size_t cancelled = 0;
  RequestStats stats;
};

class SeveralTokensTest : public ::testing::TestWithParam<Case> {
 protected:
  static Ask ask(const Case& one, Api api, bool stream) {
    Ask out;
    out.exchange = 5;
    out.api = api;
    out.answer.id = "id-1";
    out.answer.model = "m";
    out.answer.settings = api == Api::responses ? R"("store":false)" : "";
    out.answer.stream = out.answer.include_usage = stream;
    const bool choices = api == Api::chat || api == Api::completions;
    out.answer.return_token_ids = choices;
    out.generation.choices = out.generation.best_of = choices ? 2 : 1;
    out.generation.sampling.logprobs = choices ? 1 : -1;
    out.generation.sampling.min_tokens = one.min_tokens;
    out.generation.stop = one.stop;
    out.generation.include_stop = one.include_stop;
    out.generation.limits.tools = one.tools && api != Api::completions;
    out.generation.limits.parallel_calls = one.parallel_calls;
    out.generation.limits.response = api == Api::completions ? -1 : one.response_tokens;
    return out;
  }

  /// Serves the request with steps of tokens_of_step() tokens.
  template <class TokensOfStep>
  static Outcome serve(const Ask& request, const Case& one, TokensOfStep tokens_of_step) {
    testing::ServedBook book{testing::parsing_context(), KeySource({1, 0})};
    Effects effects;
    book.open(Ask(request));
    Encoded encoded;
    encoded.prompts = {testing::parsing_ids("q<think>\n")};
    const auto sequences = book.encoded(5, std::move(encoded), 10, effects).sequences;
    std::vector<TokenId> ids = testing::parsing_ids(one.text);
    if (one.finish == Finish::stop) ids.push_back(ByteTokenizer::kEos);
    std::vector<std::size_t> done(sequences.size());
    std::int64_t now_ns = 1'000'000'000;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      StepTokens step;
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        const std::size_t end = std::min(ids.size(), done[s] + tokens_of_step());
        SequenceTokens tokens;
        tokens.key = sequences[s].key;
        tokens.first_token = static_cast<std::int32_t>(step.tokens.size());
        tokens.first_score = static_cast<std::int32_t>(step.scores.size());
        tokens.tokens = tokens.scores = static_cast<std::int32_t>(end - done[s]);
        if (tokens.tokens == 0) continue;
        for (; done[s] < end; ++done[s]) {
          const auto place = static_cast<std::int32_t>(done[s]);
          const auto top = static_cast<std::int32_t>(step.tops.size());
          step.tokens.push_back(ids[done[s]]);
          step.scores.push_back({sequences[0].prompt_tokens + place,
                                 {ids[done[s]], -0.5f * static_cast<float>(place)},
                                 top,
                                 1});
          step.tops.push_back({'t', -1.0f});
        }
        tokens.finish = end == ids.size() ? one.finish : Finish::none;
        goes_on |= end < ids.size();
        step.sequences.push_back(tokens);
      }
      now_ns += 10'000'000;
      book.take(step, now_ns, Slice(), effects);
    }
    EXPECT_EQ(effects.finished.size(), 1u);
    Outcome outcome{request.answer.stream ? joined(effects, request.api) : json::parse(bytes(effects)),
                    effects.cancel.size(),
                    effects.finished.empty() ? RequestStats{} : effects.finished[0].stats};
    return outcome;
  }

  static std::string bytes(const Effects& effects) {
    std::string all;
    for (const auto& output : effects.outputs) {
      all += output.body;
      for (const std::string& part : output.more) all += part;
    }
    return all;
  }

  /// What a client makes of a stream.
  static json joined(const Effects& effects, Api api) {
    json out = {{"choices", json::array({nullptr, nullptr})}, {"parts", json::array()}};
    const std::string all = bytes(effects);
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find("\n\n", at);
      const std::string frame = all.substr(at, end - at);
      at = end + 2;
      const std::string data = frame.substr(frame.find("data: ") + 6);
      if (data == "[DONE]") {
        out["done"] = true;
      } else if (api == Api::responses) {
        join_response(out, json::parse(data));
      } else if (api == Api::messages) {
        join_message(out, json::parse(data));
      } else {
        join_chunk(out, json::parse(data));
      }
    }
    return out;
  }

  static void append(json& to, const json& more) {
    if (more.is_null()) return;
    if (more.is_string()) {
      to = (to.is_null() ? "" : to.get<std::string>()) + more.get<std::string>();
    } else {
      if (to.is_null()) to = json::array();
      for (const json& item : more) to.push_back(item);
    }
  }

  static void join_chunk(json& out, const json& chunk) {
    if (chunk.contains("usage")) out["usage"] = chunk["usage"];
    for (const json& choice : chunk["choices"]) {
      json& known = out["choices"][choice["index"].get<std::size_t>()];
      if (!choice["finish_reason"].is_null()) {
        EXPECT_FALSE(known.contains("finish_reason")) << "an end after the end";
        known["finish_reason"] = choice["finish_reason"];
      }
      const json scores = choice.value("logprobs", json());
      if (scores.is_object()) {
        for (const auto& [name, list] : scores.items()) append(known["scores"][name], list);
      }
      const json delta = choice.contains("delta") ? choice["delta"] : choice;
      for (const char* name : {"content", "reasoning_content", "text", "completion_token_ids"}) {
        if (delta.contains(name)) append(known[name], delta[name]);
      }
      for (const json& call : delta.value("tool_calls", json::array())) {
        json& calls = known["calls"];
        const auto index = call["index"].get<std::size_t>();
        append(calls[index]["arguments"], call["function"]["arguments"]);
        if (call.contains("id")) calls[index]["id"] = call["id"];
        if (call["function"].contains("name")) calls[index]["name"] = call["function"]["name"];
      }
    }
  }

  static void join_response(json& out, const json& event) {
    const std::string type = event["type"];
    if (type.ends_with(".delta")) {
      const auto index = event["output_index"].get<std::size_t>();
      append(out["parts"][index], event["delta"]);
    }
    if (type == "response.output_item.added") out["kinds"].push_back(event["item"]["type"]);
    if (type == "response.completed" || type == "response.incomplete") out["response"] = event["response"];
  }

  static void join_message(json& out, const json& event) {
    const std::string type = event["type"];
    if (type == "content_block_start") out["kinds"].push_back(event["content_block"]["type"]);
    if (type == "content_block_delta") {
      const json& delta = event["delta"];
      json& part = out["parts"][event["index"].get<std::size_t>()];
      for (const char* name : {"text", "thinking", "partial_json"}) {
        if (delta.contains(name)) append(part, delta[name]);
      }
    }
    if (type == "message_delta") out["end"] = event;
  }
};

TEST_P(SeveralTokensTest, TheAnswerIsThatOfOneTokenAStep) {
  std::mt19937 random(36);
  std::uniform_int_distribution<std::size_t> some(1, 5);
  for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages}) {
    for (const bool stream : {false, true}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(api)) + (stream ? " as a stream" : " as a whole"));
      const Ask request = ask(GetParam(), api, stream);
      const Outcome one = serve(request, GetParam(), [] { return 1; });
      ASSERT_GT(one.stats.output_tokens, 0);
      const auto equals = [&](const Outcome& other) {
        EXPECT_EQ(other.answer, one.answer) << json::diff(one.answer, other.answer);
        EXPECT_LE(other.cancelled, one.cancelled) << "what ends with its step needs no cancelling";
        EXPECT_EQ(other.stats.output_tokens, one.stats.output_tokens);
        EXPECT_EQ(other.stats.endings, one.stats.endings);
      };
      for (std::size_t each = 2; each <= 5; ++each) equals(serve(request, GetParam(), [&] { return each; }));
      equals(serve(request, GetParam(), [] { return std::size_t{1000}; }));
      for (int i = 0; i < 20; ++i) equals(serve(request, GetParam(), [&] { return some(random); }));
    }
  }
}

TEST_P(SeveralTokensTest, EveryShownTokenHasItsGap) {
  for (const std::size_t each : {1, 3, 5}) {
    const Outcome got = serve(ask(GetParam(), Api::messages, true), GetParam(), [&] { return each; });
    std::int64_t gaps = 0;
    for (const std::uint32_t count : got.stats.gaps.counts) gaps += count;
    EXPECT_EQ(gaps, got.stats.output_tokens - 1) << each;
    const auto steps = (static_cast<std::size_t>(got.stats.output_tokens) + each - 1) / each;
    EXPECT_NEAR(got.stats.gaps.sum_s, 0.01 * static_cast<double>(steps - 1), 1e-9) << each;
  }
}

INSTANTIATE_TEST_SUITE_P(Answers, SeveralTokensTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

class SpeculationUsageTest : public ::testing::Test {
 protected:
  SpeculationUsageTest() {
    auto context = std::make_shared<SessionContext>(*testing::parsing_context());
    context->speculates = true;
    context_ = context;
  }

  static Ask ask(Api api) {
    Ask out;
    out.exchange = 5;
    out.api = api;
    out.answer.id = "id-1";
    out.generation.stop = {"END"};
    return out;
  }

  /// The answer of two steps: "ab" with one of two drafts accepted, and then five tokens, of which a stop
  /// string leaves three.
  json answer(const Ask& request, std::vector<TokenId> prediction = {}) {
    testing::ServedBook book{context_, KeySource({1, 0})};
    Effects effects;
    book.open(Ask(request));
    Encoded encoded;
    encoded.prompts = {testing::parsing_ids("q</think>")};
    encoded.prediction = std::move(prediction);
    sequences_ = book.encoded(5, std::move(encoded), 10, effects).sequences;
    const auto take = [&](const std::string& text, SequenceTokens tokens) {
      StepTokens step;
      step.tokens = testing::parsing_ids(text);
      tokens.key = sequences_[0].key;
      tokens.tokens = static_cast<std::int32_t>(text.size());
      step.sequences = {tokens};
      book.take(step, 20, Slice(), effects);
    };
    SequenceTokens tokens;
    tokens.drafted = 2;
    tokens.accepted = 1;
    take("ab", tokens);
    tokens.drafted = 6;
    tokens.accepted = 4;
    tokens.predicted_accepted = 4;
    tokens.predicted_rejected = 2;
    take("ENDxy", tokens);
    EXPECT_EQ(effects.outputs.size(), 1u);
    return effects.outputs.empty() ? json() : json::parse(effects.outputs[0].body);
  }

  std::shared_ptr<const SessionContext> context_;
  std::vector<SequenceSpec> sequences_;
};

TEST_F(SpeculationUsageTest, TellsOfDraftsInEveryApi) {
  const json told = {{"draft_tokens", 8}, {"accepted_draft_tokens", 4}};
  for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages}) {
    const json usage = answer(ask(api))["usage"];
    EXPECT_EQ(usage["speculation"], told) << usage;
    EXPECT_EQ(usage.dump().find("prediction"), std::string::npos) << usage;
  }
  context_ = testing::parsing_context();
  for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages})
    EXPECT_FALSE(answer(ask(api))["usage"].contains("speculation"));
}

TEST_F(SpeculationUsageTest, APredictionReachesTheSchedulerAndIsCountedApart) {
  Ask request = ask(Api::chat);
  request.answer.has_prediction = true;
  const json details = answer(request, {7, 8, 9})["usage"]["completion_tokens_details"];
  EXPECT_EQ(sequences_[0].prediction, (std::vector<TokenId>{7, 8, 9}));
  EXPECT_EQ(details["accepted_prediction_tokens"], 3)
      << "what stands behind the stop string is no part of it";
  EXPECT_EQ(details["rejected_prediction_tokens"], 2);
  answer(request, std::vector<TokenId>(5000, 7));
  EXPECT_EQ(sequences_[0].prediction.size(), static_cast<std::size_t>(context_->max_model_len));
  answer(request, {7, context_->vocab_size});
  EXPECT_TRUE(sequences_[0].prediction.empty());
}

TEST_F(SpeculationUsageTest, OnlyTheSequenceThatBringsThePromptBringsThePrediction) {
  Ask request = ask(Api::chat);
  request.answer.has_prediction = true;
  request.generation.choices = request.generation.best_of = 2;
  testing::ServedBook book{context_, KeySource({1, 0})};
  Effects effects;
  book.open(Ask(request));
  Encoded encoded;
  encoded.prompts = {testing::parsing_ids("q</think>")};
  encoded.prediction = {7, 8};
  const auto sequences = book.encoded(5, std::move(encoded), 10, effects).sequences;
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[0].prediction.size(), 2u);
  EXPECT_TRUE(sequences[1].prediction.empty());
}

TEST_F(SpeculationUsageTest, WithoutSpeculationAPredictionIsNotRead) {
  Ask request = ask(Api::chat);
  request.answer.has_prediction = true;
  request.source.prediction = "likely";
  Session speculates(context_, Ask(request));
  EXPECT_EQ(speculates.take_encode().source.prediction, "likely");
  context_ = testing::parsing_context();
  Session plain(context_, Ask(request));
  EXPECT_EQ(plain.take_encode().source.prediction, "");
  const json usage = answer(request, {7})["usage"];
  EXPECT_TRUE(sequences_[0].prediction.empty());
  EXPECT_TRUE(usage["completion_tokens_details"].contains("accepted_prediction_tokens"));
}

}  // namespace
}  // namespace troupe
