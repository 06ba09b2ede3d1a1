// What clients send beyond what this server does: left out and named, or refused by name, in every API alike.
#include "http/api/client_policy.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/answering_model.h"
#include "http/api/messages_request.h"
#include "http/api/request_fields.h"
#include "http/api/responses_request.h"

namespace troupe::http {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

const config::LimitOptions kPolicyLimits;
const ModelFacts kPolicyModel = test::answering_model();

struct Outcome {
  Status status;
  Names ignored;
  Request request;  // of a good one
};

Outcome outcome_of(Result<Parsed>&& parsed) {
  if (!parsed.ok()) return {parsed.status(), {}, {}};
  return {{}, parsed->ignored_fields, std::move(parsed->request)};
}

/// A good body of the API with `more` in it.
Outcome sent(ApiSet api, const json& more, bool strict = false) {
  config::LimitOptions limits = kPolicyLimits;
  limits.strict_requests = strict;
  const RequestRules rules{limits, kPolicyModel};
  json body = json::object();
  const json turns = {{{"role", "user"}, {"content", "hi"}}};
  if (api == kChatApi || api == kMessagesApi || api == kCountTokensApi) body["messages"] = turns;
  if (api == kMessagesApi) body["max_tokens"] = 10;
  if (api == kCompletionsApi) body["prompt"] = "hi";
  if (api == kResponsesApi) body["input"] = "hi";
  body.update(more);
  const std::string text = body.dump();
  switch (api) {
    case kChatApi: return outcome_of(parse_chat(text, rules));
    case kCompletionsApi: return outcome_of(parse_completion(text, rules));
    case kResponsesApi: return outcome_of(parse_responses(text, rules));
    case kCountTokensApi: return outcome_of(parse_count_tokens(text, rules));
    default: return outcome_of(parse_messages(text, rules));
  }
}

constexpr std::uint16_t kPolicyApis[] = {kChatApi, kCompletionsApi, kResponsesApi, kMessagesApi,
                                         kCountTokensApi};
constexpr std::uint16_t kChats[] = {kChatApi, kResponsesApi, kMessagesApi};

/// A function of the API's form.
json function_of(ApiSet api, const std::string& name, const json& schema = {{"type", "object"}}) {
  if (api == kMessagesApi) return {{"name", name}, {"input_schema", schema}};
  if (api == kResponsesApi) return {{"type", "function"}, {"name", name}, {"parameters", schema}};
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", schema}}}};
}

json required_choice(ApiSet api) { return api == kMessagesApi ? json{{"type", "any"}} : json("required"); }

json other_tools(ApiSet api) {
  if (api == kMessagesApi) {
    return json::parse(
        R"([{"type":"web_search_20250305","name":"web_search"},{"type":"bash_20250124","name":"bash"},
        {"type":"text_editor_20250728","name":"str_replace_based_edit_tool"}])");
  }
  return json::parse(
      R"([{"type":"web_search"},{"type":"custom","name":"apply_patch","format":{"type":"grammar"}},
      {"type":"local_shell"}])");
}

TEST(ClientPolicy, EveryRowHoldsInEachOfItsApis) {
  using When = FieldPolicy::When;
  int checked = 0;
  for (const FieldPolicy& row : field_policies()) {
    const std::string name(row.field);
    for (const ApiSet api : kPolicyApis) {
      if ((row.apis & api) == 0) continue;
      const json value = row.when == When::on          ? json(true)
                         : row.when == When::off       ? json(false)
                         : row.when == When::above_one ? json(2)
                                                       : json({{"made", "up"}});
      const Outcome outcome = sent(api, {{name, value}});
      if (row.use == PartUse::left_out) {
        EXPECT_TRUE(outcome.status.ok()) << name << " api " << api << ": " << outcome.status.message;
        EXPECT_EQ(outcome.ignored, Names{name}) << "api " << api;
      } else {
        EXPECT_EQ(outcome.status.code, Code::unsupported)
            << name << " api " << api << ": " << outcome.status.message;
        EXPECT_EQ(outcome.status.param, name) << "api " << api;
        EXPECT_TRUE(outcome.status.message.starts_with(name + " ")) << outcome.status.message;
      }
      const bool known = unknown_fields(Json{{name, 1}}, api).empty();
      EXPECT_TRUE(known) << name << " is no field of api " << api << " in request_fields.cpp";
      // What asks for nothing is no reason to turn a client away.
      const Outcome absent = sent(api, {{name, nullptr}});
      if (name != "messages" && name != "prompt") {
        EXPECT_TRUE(absent.status.ok()) << name << " api " << api << ": " << absent.status.message;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 80);
}

TEST(ClientPolicy, OtherKindsOfToolsAreLeftOutAndNamed) {
  for (const ApiSet api : kChats) {
    json tools = other_tools(api);
    tools.insert(tools.begin() + 1, function_of(api, "f"));
    const Outcome outcome = sent(api, {{"tools", tools}});
    ASSERT_TRUE(outcome.status.ok()) << "api " << api << ": " << outcome.status.message;
    EXPECT_EQ(outcome.ignored, (Names{"tools.0", "tools.2", "tools.3"})) << "api " << api;
    ASSERT_EQ(outcome.request.source.conversation.tools.size(), 1u) << "api " << api;
    EXPECT_EQ(outcome.request.source.conversation.tools[0]["function"]["name"], "f");
    EXPECT_EQ(test::tool_choice_of(outcome.request), "auto");
    const Json& form =
        sent(api, {{"tools", tools}, {"tool_choice", required_choice(api)}}).request.generation.form.value;
    EXPECT_EQ(form["places"], Json::array({1})) << "the client's list counts";

    const Outcome none = sent(api, {{"tools", other_tools(api)}});
    EXPECT_TRUE(none.status.ok()) << none.status.message;
    EXPECT_EQ(test::tool_choice_of(none.request), "none") << "as without tools";

    const Status strict = sent(api, {{"tools", tools}}, true).status;
    EXPECT_EQ(strict.param, "tools.0") << strict.message;
  }
}

TEST(ClientPolicy, AFaultBehindAToolThatIsLeftOutHasThePlaceInTheClientsList) {
  const json bad = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"pattern", "("}}}}}};
  const std::pair<std::uint16_t, const char*> rows[] = {
      {kChatApi, "tools.3.function.parameters.properties.a.pattern"},
      {kResponsesApi, "tools.3.parameters.properties.a.pattern"},
      {kMessagesApi, "tools.3.input_schema.properties.a.pattern"}};
  for (const auto& [api, path] : rows) {
    json tools = other_tools(api);
    tools.push_back(function_of(api, "f", bad));
    EXPECT_EQ(sent(api, {{"tools", tools}}).status.param, path);
    tools = other_tools(api);
    tools.push_back(function_of(api, "f"));
    tools.push_back(function_of(api, "f"));
    EXPECT_TRUE(sent(api, {{"tools", tools}}).status.param.starts_with("tools.4.")) << "api " << api;
  }
}

TEST(ClientPolicy, AChoiceOfAToolThatIsLeftOutIsRefused) {
  for (const ApiSet api : kChats) {
    json tools = other_tools(api);
    const json forced = api == kMessagesApi ? json{{"type", "any"}} : json("required");
    EXPECT_EQ(sent(api, {{"tools", tools}, {"tool_choice", forced}}).status.param, "tool_choice")
        << "api " << api;
    tools.push_back(function_of(api, "f"));
    EXPECT_TRUE(sent(api, {{"tools", tools}, {"tool_choice", forced}}).status.ok()) << "api " << api;
    const json named = api == kMessagesApi ? json{{"type", "tool"}, {"name", "bash"}}
                       : api == kResponsesApi
                           ? json{{"type", "function"}, {"name", "apply_patch"}}
                           : json{{"type", "function"}, {"function", {{"name", "apply_patch"}}}};
    EXPECT_EQ(sent(api, {{"tools", tools}, {"tool_choice", named}}).status.param, "tool_choice")
        << "api " << api;
  }
  EXPECT_EQ(
      sent(kResponsesApi, {{"tools", other_tools(kResponsesApi)}, {"tool_choice", {{"type", "web_search"}}}})
          .status.param,
      "tool_choice");
}

TEST(ClientPolicy, EffortsAboveHighMeanHighInEveryApi) {
  const auto effort = [](ApiSet api, const json& body) {
    const Outcome outcome = sent(api, body);
    EXPECT_TRUE(outcome.status.ok()) << body << ": " << outcome.status.message;
    return std::pair(outcome.request.generation.limits.thinking_share, test::thinks(outcome.request));
  };
  const std::pair high(0.8, true), minimal(0.2, false);
  for (const auto& [name, meant] : {std::pair("xhigh", high), std::pair("max", high), std::pair("high", high),
                                    std::pair("minimal", minimal)}) {
    EXPECT_EQ(effort(kChatApi, {{"reasoning_effort", name}}), meant);
    EXPECT_EQ(effort(kResponsesApi, {{"reasoning", {{"effort", name}, {"summary", "auto"}}}}), meant);
    EXPECT_EQ(effort(kMessagesApi, {{"output_config", {{"effort", name}}}}), meant);
    for (const ApiSet api : kChats) EXPECT_EQ(effort(api, {{"reasoning_effort", name}}), meant);
  }
  EXPECT_EQ(effort(kResponsesApi, {{"reasoning", {{"effort", "low"}}}, {"reasoning_effort", "high"}}),
            std::pair(0.2, true));
  for (const ApiSet api : kChats) {
    const Status unknown = sent(api, {{"reasoning_effort", "extreme"}}).status;
    EXPECT_EQ(unknown.param, "reasoning_effort");
    EXPECT_NE(unknown.message.find("xhigh"), unknown.message.npos) << unknown.message;
  }
}

TEST(ClientPolicy, ItemsOfOtherToolsAreShownOrLeftOut) {
  const Outcome outcome = sent(kResponsesApi, {{"input", json::parse(R"([
      {"type": "message", "role": "user", "content": "do it"},
      {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
      {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
      {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
      {"type": "local_shell_call", "id": "l1", "call_id": null, "status": "completed",
       "action": {"type": "exec", "command": ["ls"]}},
      {"type": "local_shell_call_output", "id": "l1", "output": "a.txt"},
      {"type": "shell_call", "call_id": "s1", "action": {"commands": ["pwd"]}},
      {"type": "shell_call_output", "call_id": "s1", "output": [{"stdout": "/", "stderr": ""}]},
      {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "gAAA"}])")}});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_EQ(outcome.ignored, Names{"input.3"});
  EXPECT_EQ(json::parse(to_text(outcome.request.source.conversation.messages)), json::parse(R"([
      {"role": "user", "content": "do it"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
        "function": {"name": "apply_patch", "arguments": {"input": "*** Begin"}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "done"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "l1", "type": "function",
        "function": {"name": "local_shell", "arguments": {"type": "exec", "command": ["ls"]}}}]},
      {"role": "tool", "tool_call_id": "l1", "content": "a.txt"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "s1", "type": "function",
        "function": {"name": "shell", "arguments": {"commands": ["pwd"]}}}]},
      {"role": "tool", "tool_call_id": "s1", "content": "[{\"stderr\":\"\",\"stdout\":\"/\"}]"}])"));
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type": "compaction", "encrypted_content": "x"})", "input.0"},
      {R"({"type": "custom_tool_call", "call_id": "c", "input": "x"})", "input.0.name"},
      {R"({"type": "custom_tool_call", "name": "n", "input": "x"})", "input.0.call_id"},
      {R"({"type": "custom_tool_call_output", "output": "x"})", "input.0.call_id"},
      {R"({"type": "custom_tool_call_output", "call_id": "c"})", "input.0.output"},
      {R"({"type": "poem"})", "input.0.type"}};
  for (const auto& [item, param] : refused) {
    EXPECT_EQ(sent(kResponsesApi, {{"input", {json::parse(item)}}}).status.param, param) << item;
  }
}

TEST(ClientPolicy, BlocksOfToolsOfAnotherServerAreLeftOut) {
  const Outcome outcome = sent(kMessagesApi, {{"messages", json::parse(R"([
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}, {"type": "text", "text": "found"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}, "cache_control": {"type": "ephemeral"}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "g"}, {"type": "text", "text": "r"}]}]}])")}});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message;
  EXPECT_EQ(outcome.ignored, (Names{"messages.1.content.0", "messages.1.content.1", "messages.1.content.2",
                                    "messages.2.content.0.content.0"}));
  EXPECT_EQ(outcome.request.source.conversation.messages.size(), 3u);
  EXPECT_EQ(outcome.request.source.conversation.messages[1]["content"], "found");
  EXPECT_EQ(outcome.request.source.conversation.messages[2]["content"], "r");
}

TEST(ClientPolicy, LongListsOfWhatIsLeftOutAreCut) {
  json tools = json::array();
  for (int i = 0; i < 100; ++i) tools.push_back({{"type", "web_search"}});
  const Outcome outcome = sent(kChatApi, {{"tools", tools}, {"zebra", 1}});
  EXPECT_EQ(outcome.ignored.size(), 17u);
  EXPECT_EQ(outcome.ignored.front(), "zebra");
}

TEST(ClientPolicy, LengthsOfChatMeanTheSameForResponses) {
  for (const char* name : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    EXPECT_EQ(sent(kResponsesApi, {{name, 7}}).request.generation.max_tokens, 7) << name;
  }
  EXPECT_EQ(sent(kResponsesApi, {{"max_tokens", 7}, {"max_output_tokens", 5}}).request.generation.max_tokens,
            5);
  for (const ApiSet api : {kResponsesApi, kMessagesApi}) {
    const Outcome outcome = sent(api, {{"truncate_prompt_tokens", 9}, {"max_streaming_response_tokens", 4}});
    EXPECT_EQ(outcome.request.source.keep_tokens, 9);
    EXPECT_EQ(outcome.request.answer.tokens_per_event, 4);
    EXPECT_TRUE(outcome.ignored.empty());
  }
  EXPECT_EQ(sent(kResponsesApi, {{"thinking_token_budget", 3}}).request.generation.limits.thinking, 3);
  for (const ApiSet api : kChats) {
    const json tools = {function_of(api, "f")};
    EXPECT_FALSE(sent(api, {{"tools", tools}, {"parallel_tool_calls", false}})
                     .request.generation.limits.parallel_calls)
        << "api " << api;
    EXPECT_TRUE(sent(api, {{"tools", tools}}).request.generation.limits.parallel_calls) << "api " << api;
    EXPECT_EQ(sent(api, {{"parallel_tool_calls", 5}}).status.param, "parallel_tool_calls") << "api " << api;
  }
}

}  // namespace
}  // namespace troupe::http
