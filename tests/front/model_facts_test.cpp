// What parsers are told of a model, by what becomes of requests: tools, thoughts, defaults of the checkpoint.
#include "actors/gateway/model_facts.h"

#include <gtest/gtest.h>

#include <string>

#include "http/api/messages_request.h"
#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

using http::AnswerForm;
using http::Json;
using http::ModelFacts;
using http::ThinkingSwitch;
using testing::ByteTokenizer;
using Parser = Result<http::Parsed> (*)(std::string_view, const http::RequestRules&);

ModelFacts facts(const AnswerSyntax& syntax, ThinkingSwitch thinking = ThinkingSwitch::none) {
  ModelFacts out = model_facts({}, syntax, nullptr);
  out.thinking_switch = thinking;
  return out;
}

ModelFacts x1(ThinkingSwitch thinking = ThinkingSwitch::none) {
  static const ByteTokenizer tokenizer(
      {"<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"});
  return facts(*AnswerSyntax::make("ernie-x1", "ernie-x1", tokenizer), thinking);
}

ModelFacts hermes() { return facts(*AnswerSyntax::make("", "hermes", ByteTokenizer())); }

Result<http::Request> parsed(const ModelFacts& model, const std::string& more,
                             Parser parse = http::parse_chat) {
  static const config::LimitOptions limits;
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}])" + more + "}";
  auto request = parse(body, {limits, model});
  if (!request.ok()) return request.status();
  return std::move(request->request);
}

http::Request accepted(const ModelFacts& model, const std::string& more, Parser parse = http::parse_chat) {
  auto request = parsed(model, more, parse);
  EXPECT_TRUE(request.ok()) << more << ": " << request.status().message;
  return request.ok() ? *std::move(request) : http::Request();
}

Status refused(const ModelFacts& model, const std::string& more) { return parsed(model, more).status(); }

/// Two tools as members of a body; of the first, with further members.
std::string tools(const std::string& more = "") {
  return R"(,"tools":[{"type":"function","function":{"name":"f")" + more +
         R"(,"parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}])";
}

const std::string kStrict = R"(,"strict":true)";
const std::string kRequired = R"(,"tool_choice":"required")";
const std::string kNamed = R"(,"tool_choice":{"type":"function","function":{"name":"f"}})";
const std::string kNone = R"(,"tool_choice":"none")";

TEST(ModelFacts, TheCheckpointsSamplingIsThatOfRequests) {
  model::GenerationConfig own;
  own.temperature = 0.8;
  own.top_k = -1;
  own.frequency_penalty = 0.5;
  const wire::Sampling s = accepted(model_facts(own, {}, nullptr), "").generation.sampling;
  EXPECT_EQ(s.temperature, 0.8f);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.frequency_penalty, 0.5f);
  EXPECT_EQ(s.top_p, 1.0f);
}

TEST(ModelFacts, TheTemplateSaysWhatItsSwitchIs) {
  const auto of = [](const char* source) {
    const auto chat = ChatTemplate::compile(source);
    EXPECT_TRUE(chat.ok()) << source;
    return model_facts({}, {}, chat->get());
  };
  EXPECT_EQ(model_facts({}, {}, nullptr).thinking_switch, ThinkingSwitch::none);
  EXPECT_EQ(of("{{ messages[0].content }}").thinking_switch, ThinkingSwitch::none);
  EXPECT_EQ(of("{{ messages[0].options }}").thinking_switch, ThinkingSwitch::none)
      << "a member of something else";
  EXPECT_EQ(of("{% if enable_thinking %}<think>{% endif %}").thinking_switch,
            ThinkingSwitch::enable_thinking);
  EXPECT_EQ(
      of("{% if options is defined and options.thinking_mode == 'close' %}x{% endif %}").thinking_switch,
      ThinkingSwitch::options);
  EXPECT_EQ(
      of("{% if options.thinking_mode == 'open' or enable_thinking %}<think>{% endif %}").thinking_switch,
      ThinkingSwitch::enable_thinking);
  EXPECT_TRUE(model_facts({}, {}, nullptr).template_reads_tools);
  EXPECT_TRUE(of("{{ tools }}").template_reads_tools);
  EXPECT_FALSE(of("{{ messages }}").template_reads_tools);
}

TEST(ToolsOfARequest, ATemplateThatLeavesThemOutIsNotSilentAboutIt) {
  ModelFacts model;
  EXPECT_TRUE(refused(model, tools()).ok());
  model.template_reads_tools = false;
  const Status status = refused(model, tools());
  EXPECT_EQ(status.param, "tools");
  EXPECT_EQ(status.code, Code::unsupported);
  EXPECT_EQ(status.message,
            "tools cannot be given: this model's chat template does not show them to the model; start the "
            "server with --chat-template and one that does");
  EXPECT_EQ(refused(model, R"(,"functions":[{"name":"f"}])").param, "functions");
  EXPECT_TRUE(refused(model, tools() + kNone).ok());
  EXPECT_TRUE(refused(model, tools() + R"(,"prompt_token_ids":[1])").ok());
  EXPECT_TRUE(refused(model, tools() + R"(,"disable_chat_template":true)").ok());
}

TEST(ToolsOfARequest, CallsAreLookedForWhereToolsAreShown) {
  EXPECT_FALSE(accepted(hermes(), "").generation.limits.tools);
  const http::Request shown = accepted(hermes(), tools());
  EXPECT_TRUE(shown.generation.limits.tools);
  EXPECT_EQ(shown.generation.form.kind, AnswerForm::Kind::free);
  EXPECT_EQ(shown.source.conversation.tools.size(), 2u);
  EXPECT_FALSE(accepted(hermes(), tools(kStrict) + kNone).generation.limits.tools);
  for (const std::string& enforced : {tools(kStrict), tools() + kRequired, tools() + kNamed}) {
    EXPECT_EQ(accepted(hermes(), enforced).generation.form.kind, AnswerForm::Kind::structural_tag);
  }
  const http::Request by_ids = accepted(hermes(), tools() + kRequired + R"(,"prompt_token_ids":[1])");
  EXPECT_EQ(by_ids.generation.form.kind, AnswerForm::Kind::structural_tag);
}

TEST(ToolsOfARequest, EnforcedCallsSayWhenAnAnswerIsComplete) {
  const auto expect = [](const std::string& more, const std::string& beside) {
    accepted(x1(), more + R"(,"min_tokens":1)");
    const Status status = refused(x1(), more + R"(,"min_tokens":2)");
    EXPECT_EQ(status.code, Code::invalid_argument) << beside;
    EXPECT_EQ(status.param, "min_tokens");
    EXPECT_EQ(status.message, "min_tokens cannot be above 1 together with " + beside +
                                  ", whose enforced calls say when an answer is complete, got 2");
  };
  expect(tools() + kRequired, "tool_choice");
  expect(tools() + kNamed, "tool_choice");
  expect(R"(,"functions":[{"name":"f"}],"function_call":{"name":"f"})", "function_call");
  expect(tools(kStrict), "tools");
  accepted(x1(), tools() + R"(,"min_tokens":2)");
  accepted(x1(), tools(kStrict) + kNone + R"(,"min_tokens":2)");
}

TEST(ToolsOfARequest, WithoutAParserACallCannotBeForced) {
  const http::Request shown = accepted(facts({}), tools(kStrict));
  EXPECT_FALSE(shown.generation.limits.tools);
  EXPECT_EQ(shown.generation.form.kind, AnswerForm::Kind::free);
  EXPECT_EQ(shown.source.conversation.tools.size(), 2u);
  for (const std::string& choice : {kRequired, kNamed}) {
    const Status status = refused(facts({}), tools() + choice);
    EXPECT_EQ(status.code, Code::unsupported);
    EXPECT_EQ(status.param, "tool_choice");
    EXPECT_EQ(status.message,
              "tool_choice asks for a call, but this server looks for none in answers: start it with "
              "--tool-call-parser");
  }
}

TEST(ToolsOfARequest, WithoutFormsACallCannotBeForced) {
  ModelFacts model = hermes();
  model.offers_forms = false;
  EXPECT_EQ(accepted(model, tools(kStrict)).generation.form.kind, AnswerForm::Kind::free);
  EXPECT_EQ(refused(model, tools() + kRequired).message,
            "tool_choice asks for a call, but this server holds no answer to a form: start it with "
            "--guided-decoding-backend");
}

TEST(ToolsOfARequest, AFormOfTheTextLeavesTheModelItsCalls) {
  const std::string json_object = R"(,"response_format":{"type":"json_object"})";
  const AnswerForm form = accepted(x1(), tools() + json_object).generation.form;
  EXPECT_EQ(form.kind, AnswerForm::Kind::structural_tag);
  EXPECT_EQ(form.value["format"]["elements"][1]["type"], "or");
  EXPECT_EQ(accepted(x1(), tools() + json_object + kNone).generation.form.kind,
            AnswerForm::Kind::json_object);
  const char kOlder[] = R"(,"response_format":{"type":"structural_tag","structures":[],"triggers":[]})";
  EXPECT_EQ(refused(x1(), tools() + kOlder).param, "response_format");
}

TEST(ThoughtsOfARequest, EffortIsAShareOfTheAnswerOrTurnsThemOff) {
  const auto share = [](const std::string& more) {
    return accepted(x1(), more).generation.limits.thinking_share;
  };
  EXPECT_EQ(share(""), 0);
  EXPECT_EQ(share(R"(,"max_tokens":100)"), 0.8);
  EXPECT_EQ(share(R"(,"reasoning_effort":"low")"), 0.2);
  EXPECT_EQ(share(R"(,"reasoning_effort":"medium","max_tokens":100)"), 0.5);
  EXPECT_EQ(share(R"(,"reasoning_effort":"high")"), 0.8);
  EXPECT_EQ(share(R"(,"reasoning_effort":"none")"), 0.2) << "there is no switch";
  const auto kwargs = [](const std::string& effort, ThinkingSwitch with) {
    const std::string more = effort.empty() ? "" : R"(,"reasoning_effort":")" + effort + "\"";
    return http::to_text(accepted(x1(with), more).source.conversation.template_kwargs);
  };
  EXPECT_EQ(kwargs("none", ThinkingSwitch::enable_thinking), R"({"enable_thinking":false})");
  EXPECT_EQ(kwargs("minimal", ThinkingSwitch::options), R"({"options":{"thinking_mode":"close"}})");
  EXPECT_EQ(kwargs("low", ThinkingSwitch::options), R"({"options":{"thinking_mode":"open"}})");
  EXPECT_EQ(kwargs("", ThinkingSwitch::enable_thinking), R"({"enable_thinking":true})")
      << "thinking is on by default";
  EXPECT_EQ(kwargs("none", ThinkingSwitch::none), "null");
}

TEST(ThoughtsOfARequest, WithoutFormsTheyHaveNoLimit) {
  ModelFacts model = x1();
  model.offers_forms = false;
  EXPECT_EQ(accepted(model, R"(,"max_tokens":100)").generation.limits.thinking_share, 0);
  const Status status = refused(model, R"(,"reasoning_max_tokens":5)");
  EXPECT_EQ(status.param, "reasoning_max_tokens");
  EXPECT_EQ(status.message,
            "reasoning_max_tokens needs a server that holds answers to a form: start it with "
            "--guided-decoding-backend");
}

TEST(ThoughtsOfARequest, WithoutAParserTheyHaveNoLimit) {
  const Status status = refused(facts({}), R"(,"reasoning_max_tokens":5)");
  EXPECT_EQ(status.code, Code::unsupported);
  EXPECT_EQ(status.message,
            "reasoning_max_tokens needs a server that tells thoughts apart from the answer: start it with "
            "--reasoning-parser");
  const http::Request asked = accepted(facts({}), R"(,"reasoning_effort":"low","response_max_tokens":9)");
  EXPECT_EQ(asked.generation.limits.thinking_share, 0);
  EXPECT_EQ(asked.generation.limits.response, 9);
  accepted(facts({}), R"(,"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":5})",
           http::parse_messages);
}

TEST(ThoughtsOfARequest, TheTokensOfAPromptAreThoseOfItsEffort) {
  const auto kwargs = [](const std::string& more, Parser parse) {
    const ModelFacts model = x1(ThinkingSwitch::enable_thinking);
    return http::to_text(accepted(model, more, parse).source.conversation.template_kwargs);
  };
  EXPECT_EQ(kwargs("", http::parse_tokenize), R"({"enable_thinking":true})");
  EXPECT_EQ(kwargs(R"(,"reasoning_effort":"high")", http::parse_count_tokens), R"({"enable_thinking":true})");
  EXPECT_EQ(kwargs(R"(,"reasoning_effort":"none")", http::parse_count_tokens),
            R"({"enable_thinking":false})");
}

TEST(ThoughtsOfARequest, WhatItSaysOfTheTemplateStands) {
  const auto kwargs = [](ThinkingSwitch with, const std::string& given, const std::string& effort = "high") {
    const std::string more = R"(,"reasoning_effort":")" + effort + R"(","chat_template_kwargs":)" + given;
    return accepted(x1(with), more).source.conversation.template_kwargs;
  };
  EXPECT_EQ(http::to_text(kwargs(ThinkingSwitch::enable_thinking, R"({"enable_thinking":false})")),
            R"({"enable_thinking":false})");
  const auto options = [&](const char* given, const std::string& effort = "high") {
    return http::to_text(kwargs(ThinkingSwitch::options, given, effort)["options"]);
  };
  EXPECT_EQ(options(R"({"enable_thinking":false})"), R"({"thinking_mode":"close"})");
  EXPECT_EQ(options(R"({"enable_thinking":true})"), R"({"thinking_mode":"open"})");
  EXPECT_EQ(options(R"({"enable_thinking":null})"), R"({"thinking_mode":"close"})")
      << "as a template reads it";
  EXPECT_EQ(options(R"({"enable_thinking":false,"options":{"thinking_mode":"open"}})"),
            R"({"thinking_mode":"open"})");
  EXPECT_EQ(options(R"({"enable_thinking":0,"options":{"a":1}})"), R"({"a":1,"thinking_mode":"close"})");
  EXPECT_EQ(options(R"({"enable_thinking":true})", "none"), R"({"thinking_mode":"open"})");
  const http::AnswerLimits limits =
      accepted(x1(), R"(,"reasoning_effort":"none","reasoning_max_tokens":7,"response_max_tokens":9)")
          .generation.limits;
  EXPECT_EQ(limits.thinking, 7);
  EXPECT_EQ(limits.thinking_share, 0);
  EXPECT_EQ(limits.response, 9);
}

}  // namespace
}  // namespace troupe
