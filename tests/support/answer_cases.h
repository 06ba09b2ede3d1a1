#pragma once
// Requests for every kind of answer, with what a model says to them, for tests of what must not change an
// answer.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "actors/session/session_book.h"
#include "support/parsing_context.h"

namespace troupe::testing {

/// A request and what the model says to it.
struct AnswerCase {
  const char* name;
  Ask ask;
  std::vector<std::string> prompts;
  std::vector<std::string> lines;  ///< of each sequence; without an end token it ends with its length
};

inline const std::string kEos = "</s>";
inline const std::string kCalls =
    "w\n</think>\nhi 你\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"你\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n" +
    kEos;

inline Ask basic_ask(Api api, bool stream) {
  Ask ask;
  ask.exchange = 5;
  ask.arrived_ns = 1;
  ask.timeout_ns = 1'000'000'000;
  ask.api = api;
  ask.answer.id = "id-1";
  ask.answer.model = "m";
  ask.answer.stream = ask.answer.include_usage = stream;
  return ask;
}

/// Of every kind of answer one, as a stream or whole.
inline std::vector<AnswerCase> answer_cases(bool stream) {
  std::vector<AnswerCase> all;
  const auto add = [&](const char* name, Api api, std::vector<std::string> prompts,
                       std::vector<std::string> lines) -> Ask& {
    return all.emplace_back(AnswerCase{name, basic_ask(api, stream), std::move(prompts), std::move(lines)})
        .ask;
  };
  all.reserve(32);
  add("chat", Api::chat, {"q<think>\n"}, {"why</think>\nhi 你" + kEos});
  {
    Ask& ask = add("stop string", Api::chat, {"q"}, {"one END two"});
    ask.generation.stop = {"END"};
    ask.generation.include_stop = true;
  }
  {
    Ask& ask = add("stop strings of some choices", Api::completions, {"q"},
                   {"aENDb", "longer answer" + kEos, "xyENDz"});
    ask.generation.choices = ask.generation.best_of = 3;
    ask.generation.stop = {"END"};
    ask.generation.sampling.min_tokens = 2;
  }
  {
    Ask& ask = add("choices with logprobs", Api::chat, {"q"}, {"a" + kEos, "bb", "ccc" + kEos, "dd你d"});
    ask.generation.choices = ask.generation.best_of = 4;
    ask.generation.sampling.logprobs = 2;
    ask.generation.sampling.seed = 7;
    ask.answer.return_token_ids = true;
    ask.answer.continuous_usage = stream;
  }
  if (!stream) {
    Ask& ask = add("best of", Api::completions, {"p"}, {"first", "second" + kEos, "third", "4"});
    ask.generation.choices = 2;
    ask.generation.best_of = 4;
  }
  {
    Ask& ask = add("echo", Api::completions, {"abcdefgh"}, {"xyz", "uv" + kEos});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.answer.echo = ask.answer.return_token_ids = true;
    ask.generation.sampling.logprobs = ask.generation.sampling.prompt_logprobs = 1;
  }
  if (!stream) {
    Ask& ask = add("scores of a prompt", Api::chat, {"abcdefgh"}, {"xyz"});
    ask.generation.sampling.prompt_logprobs = 2;
  }
  {
    Ask& ask = add("echo alone", Api::completions, {"abcdefgh"}, {"x"});
    ask.answer.echo = true;
    ask.generation.max_tokens = 0;
    ask.generation.sampling.logprobs = ask.generation.sampling.prompt_logprobs = 0;
  }
  {
    Ask& ask = add("several prompts", Api::completions, {"ab", "cde", "f"},
                   {"1", "22", "333" + kEos, "44444", "5", "666666"});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.answer.tokens_per_event = 2;
  }
  {
    Ask& ask = add("form", Api::chat, {"q<think>\n"}, {"w</think>\n{\"a\": 1}" + kEos, "</think>{}" + kEos});
    ask.generation.choices = ask.generation.best_of = 2;
    ask.generation.form = {http::AnswerForm::Kind::json_schema,
                           *http::parse_json(R"({"type":"object"})", {8, 100}), "response_format"};
  }
  {
    Ask& ask = add("thinking budget", Api::chat, {"q<think>\n"}, {"thoughts</think>\nanswer" + kEos});
    ask.generation.limits.thinking = 4;
  }
  for (const Api api : {Api::chat, Api::responses, Api::messages}) {
    Ask& ask = add(api == Api::chat        ? "tools"
                   : api == Api::responses ? "responses"
                                           : "messages",
                   api, {"q<think>\n"}, {kCalls});
    ask.generation.limits.tools = true;
  }
  {
    Ask& ask = add("one call", Api::chat, {"q<think>\n"}, {kCalls});
    ask.generation.limits.tools = true;
    ask.generation.limits.parallel_calls = false;
  }
  return all;
}

/// All that was sent of one request, and what is counted of it.
inline std::string record(const Effects& effects) {
  std::string out;
  for (const http::Output& output : effects.outputs) {
    out += std::to_string(static_cast<int>(output.kind)) + " " + std::to_string(output.status) + " " +
           std::to_string(output.failed) + " " + output.body;
    for (const std::string& part : output.more) out += part;
    out += "\n";
  }
  EXPECT_EQ(effects.finished.size(), 1u);
  EXPECT_EQ(effects.begun.size(), 1u);
  for (const FinishedRequest& done : effects.finished) {
    const RequestStats& stats = done.stats;
    out += std::to_string(stats.ok) + " " + std::to_string(stats.prompt_tokens) + " " +
           std::to_string(stats.cached_tokens) + " " + std::to_string(stats.output_tokens) + " " +
           std::to_string(stats.ttft_s);
    for (const std::int32_t ending : stats.endings) out += " " + std::to_string(ending);
    for (const ChoiceText& answer : done.answers)
      out += "\n" + answer.text + "|" + answer.reasoning + "|" + answer.calls;
  }
  return out;
}

/// Opens the case's request, whose prompts become parsing_ids(); what is to be submitted of it.
inline Submit open_case(SessionBook& book, const AnswerCase& of, Effects& effects) {
  book.open(of.ask);
  book.take_encode(of.ask.exchange);
  Encoded encoded;
  for (const std::string& prompt : of.prompts) {
    encoded.prompts.push_back(parsing_ids(prompt));
    if (of.ask.answer.echo) encoded.texts.push_back({prompt, static_cast<std::int64_t>(prompt.size())});
  }
  return book.encoded(of.ask.exchange, std::move(encoded), 10, effects);
}

}  // namespace troupe::testing
