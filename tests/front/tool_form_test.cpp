#include "actors/gateway/tool_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "actors/gateway/request_resolver.h"
#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

using http::AnswerForm;
using http::Json;
using http::ToolRules;
using testing::ByteTokenizer;
using Choice = ToolRules::Choice;

constexpr TokenId kCallBegin = 262;  // of the tokenizer below
constexpr TokenId kCallEnd = 263;

const ByteTokenizer& with_tags() {
  static const ByteTokenizer tokenizer(
      {"<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"});
  return tokenizer;
}

AnswerSyntax x1() { return *AnswerSyntax::make("ernie-x1", "ernie-x1", with_tags()); }
AnswerSyntax hermes() { return *AnswerSyntax::make("", "hermes", ByteTokenizer()); }

Json tools(bool strict = false) {
  Json list = Json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","required":["a"]}}},
                              {"type":"function","function":{"name":"g"}}])");
  if (strict) list[0]["function"]["strict"] = true;
  return list;
}

ToolRules rules(Choice choice, bool parallel = true) {
  ToolRules out;
  out.choice = choice;
  out.name = choice == Choice::named ? "f" : "";
  out.parallel = parallel;
  return out;
}

Json format_of(const Json& list, const ToolRules& rule, const AnswerSyntax& syntax,
               const AnswerForm& other = {}) {
  auto form = tool_form(list, rule, syntax, other);
  EXPECT_TRUE(form.ok()) << form.status().message;
  EXPECT_EQ(form->kind, AnswerForm::Kind::structural_tag);
  EXPECT_EQ(form->value["type"], "structural_tag");
  return form->value["format"];
}

const char kCallsInText[] =
    R"({"type":"or","elements":[{"type":"sequence","elements":[{"type":"const_string","value":"\n{\"name\": \"f\", \"arguments\": "},
    {"type":"json_schema","json_schema":{"type":"object","required":["a"]}},{"type":"const_string","value":"}\n"}]},
    {"type":"sequence","elements":[{"type":"const_string","value":"\n{\"name\": \"g\", \"arguments\": "},
    {"type":"json_schema","json_schema":{"type":"object"}},{"type":"const_string","value":"}\n"}]}]})";

TEST(ToolForm, ARequiredCallIsNothingButCalls) {
  const Json tag = {{"type", "tag"},
                    {"begin", "<tool_call>"},
                    {"content", Json::parse(kCallsInText)},
                    {"end", "</tool_call>"}};
  const Json newline =
      Json::parse(R"({"type":"repeat","min":0,"max":1,"content":{"type":"const_string","value":"\n"}})");
  const Json line = {{"type", "sequence"}, {"elements", Json::array({tag, newline})}};
  const Json expected = {{"type", "plus"}, {"content", line}};
  EXPECT_EQ(format_of(tools(), rules(Choice::required), hermes()), expected);
}

TEST(ToolForm, TagsThatAreTokensAreAskedForAsTokens) {
  const Json format = format_of(tools(), rules(Choice::required, false), x1());
  ASSERT_EQ(format["type"], "sequence");
  const Json& line = format["elements"][1];
  ASSERT_EQ(line["type"], "sequence") << "one call";
  const Json& tag = line["elements"][0];
  EXPECT_EQ(tag["begin"], Json::parse(R"({"type":"token","token":)" + std::to_string(kCallBegin) + "}"));
  EXPECT_EQ(tag["end"], Json::parse(R"({"type":"token","token":)" + std::to_string(kCallEnd) + "}"));
}

TEST(ToolForm, ANamedToolIsTheOnlyOneAndCalledOnce) {
  const Json format = format_of(tools(), rules(Choice::named), hermes());
  ASSERT_EQ(format["type"], "sequence");
  EXPECT_EQ(format["elements"][0]["content"], Json::parse(kCallsInText)["elements"][0]);
}

TEST(ToolForm, StrictFunctionsLeaveTextFree) {
  const Json text = format_of(tools(true), rules(Choice::automatic), hermes());
  EXPECT_EQ(text["type"], "triggered_tags");
  EXPECT_EQ(text["triggers"], Json::parse(R"(["<tool_call>"])"));
  EXPECT_EQ(text["tags"][0]["content"], Json::parse(kCallsInText));
  const Json tokens = format_of(tools(true), rules(Choice::automatic), x1());
  EXPECT_EQ(tokens["type"], "token_triggered_tags");
  EXPECT_EQ(tokens["trigger_tokens"], Json::parse("[" + std::to_string(kCallBegin) + "]"));
}

TEST(ToolForm, TheClientsFormIsTheOtherChoice) {
  AnswerForm other;
  other.kind = AnswerForm::Kind::json_schema;
  other.value = Json::parse(R"({"type":"object"})");
  const Json format = format_of(tools(true), rules(Choice::automatic), hermes(), other);
  ASSERT_EQ(format["type"], "or");
  EXPECT_EQ(format["elements"][0]["type"], "plus");
  EXPECT_EQ(format["elements"][1], Json::parse(R"({"type":"json_schema","json_schema":{"type":"object"}})"));
}

TEST(ToolForm, NamesThePlacesOfSchemasInTheRequest) {
  ToolRules responses = rules(Choice::automatic);
  responses.schema_field = "parameters";
  AnswerForm other;
  other.kind = AnswerForm::Kind::json_schema;
  other.value = Json::parse(R"({"place":["a","b"]})");
  other.param = "text.format.schema";
  const auto form = tool_form(tools(true), responses, hermes(), other);
  ASSERT_EQ(form->places.size(), 2u) << "g is not strict";
  const auto at = [&](std::size_t i) {
    std::string pointer = form->places[i].first;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    return form->value.at(Json::json_pointer(pointer));
  };
  EXPECT_EQ(form->places[0].second, "tools.0.parameters");
  EXPECT_EQ(at(0), tools()[0]["function"]["parameters"]);
  EXPECT_EQ(form->places[1].second, "text.format.schema");
  EXPECT_EQ(at(1), other.value) << "a client's own member stays";
  EXPECT_EQ(tool_form(tools(), rules(Choice::required), hermes(), {})->places[0].second,
            "tools.0.function.parameters");
}

TEST(ToolForm, ArgumentsAreAnObjectAlsoWhereTheSchemaDoesNotSay) {
  const auto enforced = [](const char* parameters) {
    Json list = tools();
    list[0]["function"]["parameters"] = Json::parse(parameters);
    const auto form = tool_form(list, rules(Choice::named), hermes(), {});
    std::string pointer = form->places.at(0).first;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    return form->value.at(Json::json_pointer(pointer));
  };
  EXPECT_EQ(enforced(R"({"description":"any"})"), Json::parse(R"({"description":"any","type":"object"})"));
  const char kReference[] = R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})";
  EXPECT_EQ(enforced(kReference), Json::parse(kReference)) << "no keyword may stand beside a reference";
}

TEST(ToolForm, OnlyStrictOrForcedCallsAreEnforced) {
  EXPECT_FALSE(enforces_calls(tools(), rules(Choice::automatic)));
  EXPECT_TRUE(enforces_calls(tools(true), rules(Choice::automatic)));
  EXPECT_TRUE(enforces_calls(tools(), rules(Choice::required)));
  EXPECT_FALSE(enforces_calls(tools(true), rules(Choice::none)));
}

// ------------------------------------------------------------------ what the resolver makes of it

Result<Ask> resolved_chat(const http::ChatRequest& request, const AnswerSyntax& syntax,
                          ThinkingSwitch thinking = ThinkingSwitch::none) {
  http::Call call;
  call.body = request;
  return RequestResolver({"m", {}, 0, syntax, thinking}).resolve(call, 1, 1);
}

TEST(ResolvedTools, CallsAreLookedForWhereToolsAreShown) {
  http::ChatRequest request;
  EXPECT_FALSE(resolved_chat(request, hermes())->generation.limits.tools);
  request.conversation.tools = tools();
  request.tools = rules(Choice::automatic);
  const auto ask = resolved_chat(request, hermes());
  EXPECT_TRUE(ask->generation.limits.tools);
  EXPECT_EQ(ask->generation.form.kind, AnswerForm::Kind::free);
  EXPECT_EQ(ask->source.conversation.tools, tools());
  request.tools = rules(Choice::required);
  EXPECT_EQ(resolved_chat(request, hermes())->generation.form.kind, AnswerForm::Kind::structural_tag);
}

TEST(ResolvedTools, EnforcedCallsSayWhenAnAnswerIsComplete) {
  http::ChatRequest request;
  const auto refused = [&](bool strict, Choice choice, bool legacy = false) {
    request.conversation.tools = tools(strict);
    request.tools = rules(choice);
    request.tools.legacy = legacy;
    request.sampling.min_tokens = 1;
    EXPECT_TRUE(resolved_chat(request, x1()).ok());
    request.sampling.min_tokens = 2;
    return resolved_chat(request, x1()).status();
  };
  const auto expect = [](const Status& status, const std::string& beside) {
    EXPECT_EQ(status.code, Code::invalid_argument) << beside;
    EXPECT_EQ(status.param, "min_tokens");
    EXPECT_TRUE(status.message.starts_with("min_tokens cannot be above 1 together with " + beside + ", "))
        << status.message;
    EXPECT_TRUE(status.message.ends_with("got 2")) << status.message;
  };
  expect(refused(false, Choice::required), "tool_choice");
  expect(refused(false, Choice::named), "tool_choice");
  expect(refused(false, Choice::named, true), "function_call");
  expect(refused(true, Choice::automatic), "tools");
  EXPECT_TRUE(refused(false, Choice::automatic).ok());
  EXPECT_TRUE(refused(true, Choice::none).ok());
}

TEST(ResolvedTools, WithoutAParserACallCannotBeForced) {
  http::ChatRequest request;
  request.conversation.tools = tools(true);
  request.tools = rules(Choice::automatic);
  const auto shown = resolved_chat(request, AnswerSyntax());
  ASSERT_TRUE(shown.ok());
  EXPECT_FALSE(shown->generation.limits.tools);
  EXPECT_EQ(shown->generation.form.kind, AnswerForm::Kind::free);
  EXPECT_EQ(shown->source.conversation.tools, tools(true));
  for (const Choice choice : {Choice::required, Choice::named}) {
    request.tools = rules(choice);
    const auto refused = resolved_chat(request, AnswerSyntax());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().param, "tool_choice");
    EXPECT_NE(refused.status().message.find("--tool-call-parser"), std::string::npos);
  }
}

TEST(ResolvedTools, AFormOfTheTextLeavesTheModelItsCalls) {
  http::ChatRequest request;
  request.conversation.tools = tools();
  request.tools = rules(Choice::automatic);
  request.form.kind = AnswerForm::Kind::json_object;
  const auto ask = resolved_chat(request, x1());
  ASSERT_TRUE(ask.ok());
  EXPECT_EQ(ask->generation.form.kind, AnswerForm::Kind::structural_tag);
  EXPECT_EQ(ask->generation.form.value["format"]["elements"][1]["type"], "or");
  request.tools.choice = Choice::none;
  EXPECT_EQ(resolved_chat(request, x1())->generation.form.kind, AnswerForm::Kind::json_object);
  request.form.kind = AnswerForm::Kind::structural_tag;  // {"structures": …}
  request.form.value = Json::object();
  request.form.param = "response_format";
  request.tools.choice = Choice::automatic;
  EXPECT_EQ(resolved_chat(request, x1()).status().param, "response_format");
}

TEST(ResolvedTools, WithoutFormsACallCannotBeForced) {
  ResolverOptions options{"m", {}, 0, hermes()};
  options.enforces_forms = false;
  http::ChatRequest request;
  request.conversation.tools = tools(true);
  request.tools = rules(Choice::automatic);
  http::Call call;
  call.body = request;
  EXPECT_EQ(RequestResolver(options).resolve(call, 1, 1)->generation.form.kind, AnswerForm::Kind::free);
  request.tools = rules(Choice::required);
  call.body = request;
  const auto refused = RequestResolver(options).resolve(call, 1, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message.find("--guided-decoding-backend"), std::string::npos);
}

TEST(ResolvedThinking, EffortIsAShareOfTheAnswerOrTurnsThoughtsOff) {
  using Effort = http::ReasoningEffort;
  const auto ask = [](std::optional<Effort> effort, std::optional<std::int64_t> most, ThinkingSwitch with) {
    http::ChatRequest request;
    request.thinking.effort = effort;
    request.sampling.max_tokens = most;
    return *resolved_chat(request, x1(), with);
  };
  const auto share = [&](std::optional<Effort> effort, std::optional<std::int64_t> most = {}) {
    return ask(effort, most, ThinkingSwitch::none).generation.limits.thinking_share;
  };
  EXPECT_EQ(share({}), 0);
  EXPECT_EQ(share({}, 100), 0.8);
  EXPECT_EQ(share(Effort::low), 0.2);
  EXPECT_EQ(share(Effort::medium, 100), 0.5);
  EXPECT_EQ(share(Effort::high), 0.8);
  EXPECT_EQ(share(Effort::none), 0.2) << "there is no switch";
  const auto kwargs = [&](std::optional<Effort> effort, ThinkingSwitch with) {
    return http::to_text(ask(effort, {}, with).source.conversation.template_kwargs);
  };
  EXPECT_EQ(kwargs(Effort::none, ThinkingSwitch::enable_thinking), R"({"enable_thinking":false})");
  EXPECT_EQ(kwargs(Effort::minimal, ThinkingSwitch::options), R"({"options":{"thinking_mode":"close"}})");
  EXPECT_EQ(kwargs(Effort::low, ThinkingSwitch::options), R"({"options":{"thinking_mode":"open"}})");
  EXPECT_EQ(kwargs({}, ThinkingSwitch::enable_thinking), R"({"enable_thinking":true})")
      << "thinking is on by default";
  EXPECT_EQ(kwargs(Effort::none, ThinkingSwitch::none), "null");
}

TEST(ResolvedThinking, WithoutFormsThoughtsHaveNoLimit) {
  ResolverOptions options{"m", {}, 0, x1()};
  options.enforces_forms = false;
  http::ChatRequest request;
  request.sampling.max_tokens = 100;
  http::Call call;
  call.body = request;
  EXPECT_EQ(RequestResolver(options).resolve(call, 1, 1)->generation.limits.thinking_share, 0);
  request.thinking.max_tokens = 5;
  call.body = request;
  EXPECT_EQ(RequestResolver(options).resolve(call, 1, 1).status().param, "reasoning_max_tokens");
}

TEST(ResolvedThinking, TheTemplateSaysWhatItsSwitchIs) {
  const auto of = [](const char* source) {
    const auto chat = ChatTemplate::compile(source);
    EXPECT_TRUE(chat.ok()) << source;
    return thinking_switch(chat->get());
  };
  EXPECT_EQ(thinking_switch(nullptr), ThinkingSwitch::none);
  EXPECT_EQ(of("{{ messages[0].content }}"), ThinkingSwitch::none);
  EXPECT_EQ(of("{{ messages[0].options }}"), ThinkingSwitch::none) << "a member of something else";
  EXPECT_EQ(of("{% if enable_thinking %}<think>{% endif %}"), ThinkingSwitch::enable_thinking);
  EXPECT_EQ(of("{% if options is defined and options.thinking_mode == 'close' %}x{% endif %}"),
            ThinkingSwitch::options);
  EXPECT_EQ(of("{% if options.thinking_mode == 'open' or enable_thinking %}<think>{% endif %}"),
            ThinkingSwitch::enable_thinking);
}

TEST(ResolvedThinking, TheTokensOfAPromptAreThoseOfItsEffort) {
  http::TokenizeRequest request;
  const auto kwargs = [&](std::optional<http::ReasoningEffort> effort) {
    request.effort = effort;
    http::Call call;
    call.body = request;
    const auto ask = RequestResolver({"m", {}, 0, x1(), ThinkingSwitch::enable_thinking}).resolve(call, 1, 1);
    return http::to_text(ask->source.conversation.template_kwargs);
  };
  EXPECT_EQ(kwargs({}), R"({"enable_thinking":true})");
  EXPECT_EQ(kwargs(http::ReasoningEffort::high), R"({"enable_thinking":true})");
  EXPECT_EQ(kwargs(http::ReasoningEffort::none), R"({"enable_thinking":false})");
}

TEST(ResolvedThinking, WhatTheRequestSaysOfTheTemplateStands) {
  http::ChatRequest request;
  request.thinking.effort = http::ReasoningEffort::high;
  request.conversation.template_kwargs = Json::parse(R"({"enable_thinking":false})");
  const auto ask = resolved_chat(request, x1(), ThinkingSwitch::enable_thinking);
  EXPECT_EQ(http::to_text(ask->source.conversation.template_kwargs), R"({"enable_thinking":false})");
  const auto options = [&](const char* kwargs) {
    request.conversation.template_kwargs = Json::parse(kwargs);
    return http::to_text(resolved_chat(request, x1(), ThinkingSwitch::options)
                             ->source.conversation.template_kwargs["options"]);
  };
  EXPECT_EQ(options(R"({"enable_thinking":false})"), R"({"thinking_mode":"close"})");
  EXPECT_EQ(options(R"({"enable_thinking":true})"), R"({"thinking_mode":"open"})");
  EXPECT_EQ(options(R"({"enable_thinking":null})"), R"({"thinking_mode":"close"})")
      << "as a template reads it";
  EXPECT_EQ(options(R"({"enable_thinking":false,"options":{"thinking_mode":"open"}})"),
            R"({"thinking_mode":"open"})");
  EXPECT_EQ(options(R"({"enable_thinking":0,"options":{"a":1}})"), R"({"a":1,"thinking_mode":"close"})");
  request.thinking.effort = http::ReasoningEffort::none;
  EXPECT_EQ(options(R"({"enable_thinking":true})"), R"({"thinking_mode":"open"})");
  request.thinking.max_tokens = 7;
  request.thinking.response_max_tokens = 9;
  const auto limited = resolved_chat(request, x1());
  EXPECT_EQ(limited->generation.thinking.budget, 7);
  EXPECT_EQ(limited->generation.limits.thinking_share, 0);
  EXPECT_EQ(limited->generation.limits.response, 9);
}

}  // namespace
}  // namespace troupe
