// Chat requests with tools and limits of thoughts.
#include <gtest/gtest.h>

#include "http/answering_model.h"
#include "http/api/openai_error.h"

namespace troupe::http {
namespace {

using test::tool_choice_of;

Result<Parsed> parsed_chat(const std::string& body) {
  static const config::LimitOptions limits;
  static const ModelFacts model = test::answering_model();
  return parse_chat(body, {limits, model});
}

/// A body with further members, given as the inside of an object.
std::string hello(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}";
}

Request accepted(const std::string& body) {
  auto parsed = parsed_chat(body);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}

void refused(const std::string& body, const std::string& param, const std::string& code) {
  const Status status = parsed_chat(body).status();
  EXPECT_EQ(status.param, param) << body.substr(0, 100) << ": " << status.message;
  EXPECT_EQ(status.reason, code) << body.substr(0, 100) << ": " << status.message;
  EXPECT_EQ(http_status(status), 400);
  EXPECT_LT(status.message.size(), 300u);  // however long the offending value was
}

/// A list of so many equal elements.
std::string many(const std::string& element, int count) {
  std::string list = "[";
  for (int i = 0; i < count; ++i) list += (i > 0 ? "," : "") + element;
  return list + "]";
}

TEST(ToolRequest, ReplayedCallsHaveArgumentsInJson) {
  const auto call = [](const std::string& arguments) {
    return R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}},{"function":{"name":"f","arguments":)" +
           arguments + "}}]}]}";
  };
  const char* const place = "messages.0.tool_calls.1.function.arguments";
  for (const char* arguments : {R"("not json")", R"("[1]")", "[1]", "5", R"(" ")"}) {
    refused(call(arguments), place, "invalid_value");
  }
  accepted(call(R"("{}")"));
  accepted(call("null"));
}

TEST(ToolRequest, PatternsAreRegularExpressions) {
  const auto tool = [](const std::string& schema, const std::string& more = "") {
    return hello(R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]" +
                 more);
  };
  const auto pattern = [](const std::string& text) {
    return Json({{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"pattern", text}}}}}})
        .dump();
  };
  const char* const place = "tools.0.function.parameters.properties.a.pattern";
  for (const char* text :
       {"(", "a)", "[a", "[z-a]", "a\\", "*a", "a**", "a+?*", "(|?a)", "a{3,2}", "a{1}{2}", "[\\]",
        "("
        "?:a",
        "a|+"}) {
    refused(tool(pattern(text)), place, "invalid_tool");
    refused(tool(pattern(text), R"(,"tool_choice":"none")"), place, "invalid_tool");
  }
  for (const char* text : {"",           "^a{2,3}$", "(?:a|b)*?", "(?=a)b",      "(?<name>a)(?P<x>b)",
                           "\\bword\\b", "[]a]",     "[^]]",      "[[:alpha:]]", "a{,3}",
                           "{",          "a{x}",     "a{1",       "a{1,2,3}",    "a}",
                           "a]",         "[(*+]",    "\\p{L}+",   "a++",         "[a-z0-9_.-]+@",
                           "[+-z]",      "(a+)+b",   "x{2}?",     "^*",          "é+[à-é]"}) {
    accepted(tool(pattern(text)));
  }
  refused(tool(R"({"type":"object","properties":{"a":{"pattern":5}}})"), place, "invalid_tool");
  refused(tool(R"({"patternProperties":{"(":{}}})"), "tools.0.function.parameters.patternProperties",
          "invalid_tool");
  refused(tool(R"({"$defs":{"x":{"anyOf":[{},{"items":{"pattern":"("}}]}}})"),
          "tools.0.function.parameters.$defs.x.anyOf.1.items.pattern", "invalid_tool");
  accepted(tool(
      R"({"properties":{"pattern":{"type":"string","default":{"pattern":"("}},"b":{"enum":[{"pattern":5}]}}})"));
  refused(hello(R"("functions":[{"name":"f","parameters":{"pattern":"("}}])"),
          "functions.0.parameters.pattern", "invalid_tool");
  refused(tool(pattern(std::string(200'000, '('))), place, "invalid_tool");
}

TEST(ToolRequest, TheOlderFormOfCallsBecomesTheNewOne) {
  const Request request = accepted(
      R"({"messages":[{"role":"user","content":"x"},
          {"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"a\":1}"}},
          {"role":"function","name":"f","content":"7"}],
          "functions":[{"name":"f","parameters":{"type":"object"}}],"function_call":{"name":"f"}})");
  EXPECT_EQ(to_text(request.source.conversation.messages),
            R"([{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":)"
            R"([{"type":"function","function":{"name":"f","arguments":{"a":1}}}]},)"
            R"({"role":"tool","name":"f","content":"7","tool_call_id":""}])");
  EXPECT_EQ(to_text(request.source.conversation.tools),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
  EXPECT_EQ(tool_choice_of(request), "named");
  EXPECT_EQ(request.generation.form.value["name"], "f");
  EXPECT_TRUE(request.answer.function_call);
  refused(hello(R"("functions":[{"name":"f"}],"tools":[{"type":"function","function":{"name":"f"}}])"),
          "functions", "invalid_value");
  refused(hello(R"("functions":[{"name":"f"}],"function_call":"required")"), "function_call",
          "invalid_value");
  refused(hello(R"("functions":[{}])"), "functions.0.name", "invalid_tool");
  refused(R"({"messages":[{"role":"user","content":"x","function_call":{"name":"f"}}]})",
          "messages.0.function_call", "invalid_value");
}

TEST(ToolRequest, Row54And55Tools) {
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const auto choice = [&](const std::string& more) { return tool_choice_of(accepted(hello(tool + more))); };
  EXPECT_EQ(choice(""), "auto");
  EXPECT_EQ(choice(R"(,"tool_choice":"none")"), "none");
  EXPECT_EQ(choice(R"(,"tool_choice":"required")"), "required");
  EXPECT_EQ(choice(R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"), "named");
  EXPECT_EQ(tool_choice_of(accepted(hello(R"("tools":[],"tool_choice":"auto")"))), "none");
  EXPECT_FALSE(accepted(hello(tool + R"(,"parallel_tool_calls":false)")).generation.limits.parallel_calls);
  refused(hello(tool + R"(,"tool_choice":{"type":"function","function":{"name":"absent"}})"), "tool_choice",
          "invalid_value");
  const Status absent =
      parsed_chat(hello(tool + R"(,"tool_choice":{"type":"function","function":{"name":"absent"}})"))
          .status();
  EXPECT_EQ(absent.message, R"(tool_choice names "absent", which is not among the tools: "f")");
  refused(hello(R"("tool_choice":"required")"), "tool_choice", "invalid_value");
  refused(hello(tool + R"(,"tool_choice":"maybe")"), "tool_choice", "invalid_value");
  refused(hello(tool + R"(,"tool_choice":{"type":"function"})"), "tool_choice", "invalid_value");
  refused(hello(tool + R"(,"parallel_tool_calls":1)"), "parallel_tool_calls", "invalid_value");
  refused(hello(R"("tools":)" + std::string(3000, '[') + std::string(3000, ']')), "tools", "invalid_tool");
  refused(hello(R"("tools":5)"), "tools", "invalid_tool");
  refused(hello(R"("tools":["f"])"), "tools.0", "invalid_tool");
  refused(hello(R"("tools":[{"type":"function","function":{"name":"a\nb"}}])"), "tools.0.function.name",
          "invalid_tool");
  refused(hello(R"("tools":[{"type":"function","function":{}}])"), "tools.0.function.name", "invalid_tool");
  refused(hello(R"("tools":[{"type":"function"}])"), "tools.0.function", "invalid_tool");
  refused(hello(R"("tools":[{"type":5}])"), "tools.0.type", "invalid_tool");
  refused(hello(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
          "tools.0.function.parameters", "invalid_tool");
  refused(hello(R"("tools":[{"type":"function","function":{"name":"f","strict":"yes"}}])"),
          "tools.0.function.strict", "invalid_tool");
  refused(
      hello(
          R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"),
      "tools.1.function.name", "invalid_tool");
  refused(hello(R"("tools":)" + many(R"({"type":"function","function":{"name":"f"}})", 10'000)), "tools",
          "invalid_tool");
}

TEST(ToolRequest, EnforcedArgumentsAreAnObject) {
  const auto tool = [](const std::string& type, const std::string& strict = "false") {
    return hello(R"("tools":[{"type":"function","function":{"name":"f","strict":)" + strict +
                 R"(,"parameters":{"type":)" + type + "}}}]");
  };
  const auto with = [](std::string body, const std::string& more) {
    return body.insert(body.size() - 1, "," + more);
  };
  const std::string place = "tools.0.function.parameters.type";
  accepted(tool(R"("string")"));  // shown to the model, no more
  accepted(with(tool(R"("object")", "true"), R"("tool_choice":"required")"));
  refused(tool(R"("string")", "true"), place, "invalid_tool");
  refused(with(tool(R"(["object","null"])"), R"("tool_choice":"required")"), place, "invalid_tool");
  refused(with(tool(R"("array")"), R"("tool_choice":{"type":"function","function":{"name":"f"}})"), place,
          "invalid_tool");
  refused(hello(R"("functions":[{"name":"f","parameters":{"type":"array"}}],"function_call":{"name":"f"})"),
          "functions.0.parameters.type", "invalid_tool");
}

TEST(ToolRequest, EnforcedSchemasAllowObjectsAlone) {
  const auto with = [](const std::string& schema) {
    return hello(
        R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":)" +
        schema + "}}]");
  };
  for (
      const char* schema : {
          "{}",
          R"({"description":"any"})",
          R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})",
          R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"properties":{"x":{"type":"string"}}}}})",
          R"({"$ref":"#"})",          // requires itself again and again, which is told when it is compiled
          R"({"$ref":"#/nowhere"})",  // so is this
          R"({"anyOf":[{"type":"object"},{"required":["x"]},false]})",
          R"({"type":"object","anyOf":[{"required":["x"]},{"required":["y"]}]})",
          R"({"allOf":[{"minLength":1},{"type":"object"}]})",
          R"({"const":{"x":1}})",
          R"({"enum":[{"x":1},{}]})",
      }) {
    accepted(with(schema));
  }
  struct Refused {
    const char* schema;
    const char* below;
  };
  for (const auto& [schema, below] : std::initializer_list<Refused>{
           {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"string"}}})", ".$defs.a.type"},
           {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"items":{}}}})", ".$defs.b"},
           {R"({"anyOf":[{"type":"object"},{"type":"string"}]})", ".anyOf.1.type"},
           {R"({"oneOf":[{"type":"object"},{"description":"any"}]})", ".oneOf.1"},
           {R"({"anyOf":[{"properties":{},"items":{}}]})", ".anyOf.0"},
           {R"({"anyOf":[true]})", ".anyOf.0"},
           {R"({"anyOf":[{"anyOf":[{"type":"object"},{"const":1}]}]})", ".anyOf.0.anyOf.1.const"},
           {R"({"allOf":[{"minLength":1}]})", ".allOf.0"},
           {R"({"const":"x"})", ".const"},
           {R"({"enum":[{"x":1},2]})", ".enum.1"},
       }) {
    refused(with(schema), std::string("tools.0.function.parameters") + below, "invalid_tool");
  }
}

TEST(ToolRequest, LimitsOfThoughts) {
  const Request request =
      accepted(hello(R"("reasoning_max_tokens":4,"response_max_tokens":6,"reasoning_effort":"minimal")"));
  EXPECT_EQ(request.generation.limits.thinking, 4);
  EXPECT_EQ(request.generation.limits.response, 6);
  EXPECT_FALSE(test::thinks(request));
  const auto thinking = [](const std::string& more) {
    return accepted(hello(more)).generation.limits.thinking;
  };
  EXPECT_EQ(thinking(R"("thinking_token_budget":0)"), 0);
  EXPECT_EQ(thinking(R"("thinking_token_budget":5,"reasoning_max_tokens":5)"), 5);
  refused(hello(R"("thinking_token_budget":5,"reasoning_max_tokens":6)"), "thinking_token_budget",
          "invalid_value");
  refused(hello(R"("reasoning_max_tokens":0)"), "reasoning_max_tokens", "out_of_range");
  refused(hello(R"("response_max_tokens":0)"), "response_max_tokens", "out_of_range");
  refused(hello(R"("reasoning_effort":"extreme")"), "reasoning_effort", "invalid_value");
  refused(hello(R"("reasoning_effort":3)"), "reasoning_effort", "invalid_type");
  EXPECT_EQ(to_text(accepted(hello(R"("enable_thinking":false)")).source.conversation.template_kwargs),
            R"({"enable_thinking":false})");
}

}  // namespace
}  // namespace troupe::http
