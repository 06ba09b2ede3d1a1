// Bodies of /v1/messages: the chat request that good ones become, and the field that bad ones are refused
// for.
#include "http/api/messages_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/answering_model.h"

namespace troupe::http {
namespace {

using nlohmann::json;
using test::tool_choice_of;

const config::LimitOptions kMessagesLimits;
const ModelFacts kMessagesModel = test::answering_model();
const RequestRules kMessagesRules{kMessagesLimits, kMessagesModel, "fresh"};

json with_defaults(json body) {
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "hi"}}};
  if (!body.contains("max_tokens")) body["max_tokens"] = 100;
  return body;
}

Request good_message(const json& body) {
  auto parsed = parse_messages(with_defaults(body).dump(), kMessagesRules);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}

json turns_of(const json& body) {
  return json::parse(to_text(good_message(body).source.conversation.messages));
}

void bad_message(const json& body, const std::string& param, Code code = Code::invalid_argument) {
  const auto parsed = parse_messages(with_defaults(body).dump(), kMessagesRules);
  ASSERT_FALSE(parsed.ok()) << body;
  EXPECT_EQ(parsed.status().param, param) << body << ": " << parsed.status().message;
  EXPECT_EQ(parsed.status().code, code) << body << ": " << parsed.status().message;
  EXPECT_TRUE(parsed.status().message.starts_with(param)) << parsed.status().message;
}

/// A body whose first message is the user's, with one block.
json user_block(const json& block) { return {{"messages", {{{"role", "user"}, {"content", {block}}}}}}; }

const json kWeather = {{"name", "f"}, {"description", "d"}, {"input_schema", {{"type", "object"}}}};

TEST(MessagesRequest, SystemAndText) {
  EXPECT_EQ(turns_of({{"system", "be brief"}}),
            json::parse(R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])"));
  const json blocks = json::parse(
      R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}])");
  EXPECT_EQ(turns_of({{"system", blocks}})[0]["content"],
            json::parse(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])"));
  const Request request = good_message({{"model", "demo"}});
  EXPECT_EQ(request.answer.id, "msg_fresh");
  EXPECT_EQ(request.api, Api::messages);
  EXPECT_EQ(request.generation.max_tokens, 100);
}

TEST(MessagesRequest, TheUserOfTheMetadataIsTheCacheKey) {
  EXPECT_EQ(good_message({{"metadata", {{"user_id", "user_1_session_2"}}}}).together, "user_1_session_2");
  EXPECT_EQ(good_message({{"metadata", {{"user_id", 7}}}}).together, "");
}

TEST(MessagesRequest, BlocksOfAConversation) {
  const json messages = json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "why", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
      {"type": "text", "text": "let me"}, {"type": "text", "text": "see"},
      {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
      {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
      {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "two"}], "is_error": true},
      {"type": "tool_result", "tool_use_id": "toolu_3"},
      {"type": "text", "text": "and?"}]}])");
  EXPECT_EQ(turns_of({{"messages", messages}}), json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "reasoning_content": "why",
     "content": [{"type": "text", "text": "let me"}, {"type": "text", "text": "see"}], "tool_calls": [
      {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
      {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "one"},
    {"role": "tool", "tool_call_id": "toolu_2", "content": "two"},
    {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
    {"role": "user", "content": "and?"}])"));
}

TEST(MessagesRequest, ToolsThinkingAndSampling) {
  const Request request =
      good_message({{"tools", {kWeather}},
                    {"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", true}}},
                    {"thinking", {{"type", "enabled"}, {"budget_tokens", 50}}},
                    {"stop_sequences", {"END"}},
                    {"temperature", 0.5},
                    {"top_k", 3},
                    {"stream", true},
                    {"metadata", {{"user_id", "me"}}}});
  EXPECT_EQ(
      to_text(request.source.conversation.tools),
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])");
  EXPECT_EQ(tool_choice_of(request), "required");
  EXPECT_EQ(request.generation.form.value["schema_field"], "input_schema");
  EXPECT_FALSE(request.generation.limits.parallel_calls);
  EXPECT_EQ(request.generation.limits.thinking, 50);
  EXPECT_EQ(request.generation.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(request.generation.sampling.top_k, 3);
  EXPECT_TRUE(request.answer.stream);
  for (const std::string type : {"auto", "none"}) {
    EXPECT_EQ(tool_choice_of(good_message({{"tools", {kWeather}}, {"tool_choice", {{"type", type}}}})), type);
  }
  const Request named =
      good_message({{"tools", {kWeather}}, {"tool_choice", {{"type", "tool"}, {"name", "f"}}}});
  EXPECT_EQ(tool_choice_of(named), "named");
  EXPECT_EQ(named.generation.form.value["name"], "f");
  EXPECT_FALSE(test::thinks(good_message({{"thinking", {{"type", "disabled"}}}})));
  const Request adaptive = good_message({{"thinking", {{"type", "adaptive"}}}});
  EXPECT_TRUE(test::thinks(adaptive));
  EXPECT_EQ(adaptive.generation.limits.thinking, -1);
  EXPECT_EQ(good_message({{"output_config", {{"effort", "medium"}}}}).generation.limits.thinking_share, 0.5);
}

TEST(MessagesRequest, BadFieldsAreNamedAsWritten) {
  EXPECT_EQ(
      parse_messages(R"({"messages":[{"role":"user","content":"x"}]})", kMessagesRules).status().message,
      "max_tokens is missing");
  EXPECT_EQ(parse_messages(R"({"messages":[{"role":"user","content":"x"}]})", kMessagesRules).status().param,
            "max_tokens");
  EXPECT_EQ(parse_messages(R"({"max_tokens":5})", kMessagesRules).status().param, "messages");
  bad_message({{"max_tokens", 0}}, "max_tokens");
  bad_message({{"messages", json::array()}}, "messages");
  bad_message({{"messages", {5}}}, "messages.0");
  bad_message({{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "messages.0.role");
  bad_message({{"messages", {{{"role", "user"}}}}}, "messages.0.content");
  bad_message({{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages.0.content");
  bad_message(user_block(5), "messages.0.content.0");
  bad_message(user_block({{"type", "image"}}), "messages.0.content.0", Code::unsupported);
  bad_message(user_block({{"type", "thinking"}}), "messages.0.content.0.type");
  bad_message(user_block({{"type", "text"}}), "messages.0.content.0.text");
  bad_message(user_block({{"type", "tool_result"}}), "messages.0.content.0.tool_use_id");
  bad_message(user_block({{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {{{"type", "image"}}}}}),
              "messages.0.content.0.content.0", Code::unsupported);
  const json assistant = {{"role", "assistant"},
                          {"content", {{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", 5}}}}};
  bad_message({{"messages", {assistant}}}, "messages.0.content.0.input");
  bad_message({{"messages", {{{"role", "assistant"}, {"content", "The answer is"}}}}}, "messages.0.role",
              Code::unsupported);
  bad_message({{"system", 5}}, "system");
  bad_message({{"stop_sequences", {""}}}, "stop_sequences");
  bad_message({{"tools", {{{"type", 5}, {"name", "bash"}}}}}, "tools.0.type");
  bad_message({{"tools", {{{"name", "f"}}}}}, "tools.0.input_schema");
  bad_message({{"tools", {{{"name", "f"}, {"input_schema", 5}}}}}, "tools.0.input_schema");
  bad_message({{"tools", {{{"input_schema", json::object()}}}}}, "tools.0.name");
  bad_message({{"tool_choice", "auto"}}, "tool_choice");
  bad_message({{"tool_choice", {{"type", "tool"}}}}, "tool_choice");
  bad_message({{"tool_choice", {{"type", "any"}}}}, "tool_choice");
  bad_message({{"thinking", {{"type", "sometimes"}}}}, "thinking");
  bad_message({{"thinking", {{"type", "enabled"}}}}, "thinking.budget_tokens");
  bad_message({{"thinking", {{"type", "enabled"}, {"budget_tokens", 100}}}}, "thinking.budget_tokens");
  bad_message({{"output_config", {{"effort", "huge"}}}}, "output_config.effort");
  bad_message({{"mcp_servers", {{{"url", "x"}}}}}, "mcp_servers", Code::unsupported);
}

TEST(MessagesRequest, TokensAreCountedWithoutAnAnswer) {
  const json body = {
      {"system", "s"}, {"tools", {kWeather}}, {"messages", {{{"role", "assistant"}, {"content", "hi"}}}}};
  const auto parsed = parse_count_tokens(body.dump(), kMessagesRules);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed.value().request.api, Api::count_tokens);
  EXPECT_EQ(parsed.value().request.source.conversation.messages.size(), 2u);
  EXPECT_EQ(parsed.value().request.source.conversation.tools.size(), 1u);
  EXPECT_EQ(parse_count_tokens(R"({"messages":5})", kMessagesRules).status().param, "messages");
  const auto thinking = [](const char* more) {
    const auto parsed = parse_count_tokens(
        R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(more) + "}", kMessagesRules);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message;
    EXPECT_TRUE(parsed.value().ignored_fields.empty()) << more;
    return test::thinks(parsed.value().request);
  };
  EXPECT_FALSE(thinking(R"("thinking":{"type":"disabled"})"));
  EXPECT_TRUE(thinking(R"("thinking":{"type":"enabled","budget_tokens":5})"));
  EXPECT_TRUE(thinking(R"("output_config":{"effort":"low"})"));
  EXPECT_FALSE(thinking(R"("output_config":{"effort":"minimal"})"));
  EXPECT_FALSE(thinking(R"("chat_template_kwargs":{"enable_thinking":false},"enable_thinking":false)"));
}

}  // namespace
}  // namespace troupe::http
