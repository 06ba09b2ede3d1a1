#include "actors/gateway/tool_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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

}  // namespace
}  // namespace troupe
