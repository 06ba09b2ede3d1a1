// Bodies of /v1/responses: the chat request that good ones become, and the field that bad ones are refused
// for.
#include "http/api/responses_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/answering_model.h"

namespace troupe::http {
namespace {

using nlohmann::json;
using test::tool_choice_of;

const config::LimitOptions kResponsesLimits;
const ModelFacts kResponsesModel = test::answering_model();
const RequestRules kResponsesRules{kResponsesLimits, kResponsesModel, "fresh"};

Result<Parsed> responses(const json& body) { return parse_responses(body.dump(), kResponsesRules); }

Request good_response(json body) {
  if (!body.contains("input")) body["input"] = "hi";
  auto parsed = responses(body);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}

json messages_of(const json& body) {
  return json::parse(to_text(good_response(body).source.conversation.messages));
}

json settings_of(const json& body) { return json::parse("{" + good_response(body).answer.settings + "}"); }

void bad_response(json body, const std::string& param, Code code = Code::invalid_argument) {
  if (!body.contains("input")) body["input"] = "hi";
  const auto parsed = responses(body);
  ASSERT_FALSE(parsed.ok()) << body;
  EXPECT_EQ(parsed.status().param, param) << body << ": " << parsed.status().message;
  EXPECT_EQ(parsed.status().code, code) << body << ": " << parsed.status().message;
  EXPECT_TRUE(parsed.status().message.starts_with(param)) << parsed.status().message;
  EXPECT_EQ(parsed.status().message.find("response_format"), std::string::npos);
}

const json kTool = {
    {"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}, {"strict", true}};

TEST(ResponsesRequest, TextAndInstructionsAreMessages) {
  EXPECT_EQ(messages_of({{"input", "hi"}}), json::parse(R"([{"role":"user","content":"hi"}])"));
  EXPECT_EQ(messages_of({{"input", "hi"}, {"instructions", "be brief"}}),
            json::parse(R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])"));
  const Request request = good_response({});
  EXPECT_EQ(request.answer.id, "resp_fresh");
  EXPECT_EQ(request.api, Api::responses);
}

TEST(ResponsesRequest, ItemsOfOneTurnAreOneMessage) {
  const json input = json::parse(R"([
    {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "let me see", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{\"x\": 1}"},
    {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": ""},
    {"type": "function_call_output", "call_id": "call_1", "output": "one"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "two"}]},
    {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": "x"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": "again"}])");
  EXPECT_EQ(messages_of({{"input", input}}), json::parse(R"([
    {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "user", "content": "q"},
    {"role": "assistant", "reasoning_content": "why", "content": "let me see", "tool_calls": [
      {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
      {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
    {"role": "assistant", "reasoning_content": "short", "content": "no"},
    {"role": "assistant", "content": "again"}])"));
}

TEST(ResponsesRequest, TheCacheKeyIsThatOfAChat) {
  EXPECT_EQ(good_response({{"prompt_cache_key", "k"}}).together, "k");
  EXPECT_EQ(settings_of({{"prompt_cache_key", "k"}})["prompt_cache_key"], "k");
  bad_response({{"prompt_cache_key", 7}}, "prompt_cache_key");
}

TEST(ResponsesRequest, ToolsAndSampling) {
  const Request request = good_response({{"tools", {kTool}},
                                         {"tool_choice", {{"type", "function"}, {"name", "f"}}},
                                         {"parallel_tool_calls", false},
                                         {"max_output_tokens", 7},
                                         {"temperature", 0.5},
                                         {"top_p", 0.9},
                                         {"top_k", 3},
                                         {"seed", 4},
                                         {"stream", true},
                                         {"reasoning", {{"effort", "low"}, {"summary", "auto"}}},
                                         {"stream_options", {{"include_obfuscation", false}}},
                                         {"include", {"reasoning.encrypted_content"}},
                                         {"truncation", "auto"},
                                         {"store", true},
                                         {"user", "me"}});
  EXPECT_EQ(tool_choice_of(request), "named");
  EXPECT_EQ(request.generation.form.value["name"], "f");
  EXPECT_EQ(request.generation.form.value["schema_field"], "parameters");
  EXPECT_FALSE(request.generation.limits.parallel_calls);
  EXPECT_EQ(to_text(request.source.conversation.tools),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"},"strict":true}}])");
  EXPECT_EQ(request.generation.max_tokens, 7);
  EXPECT_EQ(request.generation.sampling.temperature, 0.5f);
  EXPECT_EQ(request.generation.sampling.top_p, 0.9f);
  EXPECT_EQ(request.generation.sampling.top_k, 3);
  EXPECT_EQ(request.generation.sampling.seed, 4u);
  EXPECT_TRUE(request.answer.stream);
  EXPECT_EQ(request.generation.limits.thinking_share, 0.2);
  EXPECT_EQ(request.answer.id, "resp_fresh");
  for (const std::string choice : {"required", "none"}) {
    EXPECT_EQ(tool_choice_of(good_response({{"tools", {kTool}}, {"tool_choice", choice}})), choice);
  }
}

TEST(ResponsesRequest, SettingsRepeatTheRequest) {
  const json settings = settings_of({{"tools", {kTool}},
                                     {"metadata", {{"k", "v"}}},
                                     {"instructions", "be\n\"brief\""},
                                     {"store", true},
                                     {"reasoning", {{"effort", "high"}, {"summary", "auto"}}},
                                     {"max_output_tokens", 9}});
  EXPECT_EQ(settings["tools"], json::array({kTool}));
  EXPECT_EQ(settings["metadata"], json({{"k", "v"}}));
  EXPECT_EQ(settings["instructions"], "be\n\"brief\"");
  EXPECT_EQ(settings["store"], false);
  EXPECT_EQ(settings["reasoning"], json({{"effort", "high"}, {"summary", nullptr}}));
  EXPECT_EQ(settings["max_output_tokens"], 9);
  const json defaults = settings_of({{"metadata", nullptr}});
  EXPECT_EQ(defaults["tools"], json::array());
  EXPECT_EQ(defaults["tool_choice"], "auto");
  EXPECT_EQ(defaults["metadata"], json::object());
  EXPECT_EQ(defaults["text"], json::parse(R"({"format":{"type":"text"},"verbosity":"medium"})"));
  EXPECT_EQ(defaults["parallel_tool_calls"], true);
  EXPECT_EQ(defaults["truncation"], "disabled");
}

TEST(ResponsesRequest, MetadataDoesNotReachTheTemplate) {
  EXPECT_TRUE(test::thinks(good_response({{"metadata", {{"enable_thinking", "no"}}}})));
}

TEST(ResponsesRequest, UnknownFieldsAreReported) {
  const auto parsed = responses({{"input", "hi"}, {"made_up", 1}, {"service_tier", "auto"}, {"top_k", 2}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().ignored_fields, std::vector<std::string>{"made_up"});
}

TEST(ResponsesRequest, WhatIsNotStoredIsRefused) {
  for (const char* field : {"previous_response_id", "conversation", "prompt", "messages"}) {
    bad_response({{field, "resp_1"}}, field, Code::unsupported);
  }
  bad_response({{"background", true}}, "background", Code::unsupported);
  bad_response({{"n", 2}}, "n");
  bad_response({{"n", "1"}}, "n");
  EXPECT_TRUE(parse_responses(R"({"input":"a","n":2})", kResponsesRules)
                  .status()
                  .message.starts_with("n must be 1, since a response is one answer, got 2"));
  good_response({{"n", 1}});
  bad_response({{"top_logprobs", 2}}, "top_logprobs", Code::unsupported);
  bad_response({{"include", {"message.output_text.logprobs"}}}, "include", Code::unsupported);
  bad_response({{"input", {{{"type", "item_reference"}, {"id", "msg_1"}}}}}, "input.0", Code::unsupported);
  good_response({{"background", false}, {"previous_response_id", nullptr}, {"top_logprobs", 0}});
}

TEST(ResponsesRequest, BadInputNamesItsPlace) {
  EXPECT_EQ(parse_responses("{}", kResponsesRules).status().param, "input");
  bad_response({{"input", 5}}, "input");
  bad_response({{"input", json::array()}}, "input");
  bad_response({{"input", {5}}}, "input.0");
  bad_response({{"input", {{{"type", "computer_call"}}}}}, "input.0.type");
  bad_response({{"input", {{{"type", 5}}}}}, "input.0.type");
  bad_response({{"input", {{{"role", "robot"}, {"content", "x"}}}}}, "input.0.role");
  bad_response({{"input", {{{"role", "user"}}}}}, "input.0.content");
  bad_response(
      {{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", "x"}}}}}}}},
      "input.0.content.0", Code::unsupported);
  bad_response({{"input", {{{"role", "user"}, {"content", {{{"type", "input_text"}}}}}}}},
               "input.0.content.0.text");
  bad_response({{"input", {{{"role", "user"}, {"content", {{{"type", "poem"}}}}}}}},
               "input.0.content.0.type");
  bad_response({{"input", {{{"type", "function_call"}, {"name", "f"}}}}}, "input.0.call_id");
  bad_response({{"input", {{{"type", "function_call"}, {"call_id", "c"}}}}}, "input.0.name");
  bad_response(
      {{"input", {{{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "x"}}}}},
      "input.0.arguments");
  bad_response({{"input", {{{"type", "function_call_output"}, {"output", "x"}}}}}, "input.0.call_id");
  bad_response({{"input", {{{"type", "function_call_output"}, {"call_id", "c"}}}}}, "input.0.output");
  bad_response({{"instructions", 5}}, "instructions");
}

TEST(ResponsesRequest, BadFieldsAreNamedAsWritten) {
  bad_response({{"max_output_tokens", 0}}, "max_output_tokens");
  bad_response({{"temperature", 3}}, "temperature");
  bad_response({{"reasoning", "low"}}, "reasoning");
  bad_response({{"reasoning", {{"effort", "huge"}}}}, "reasoning.effort");
  bad_response({{"tools", {{{"type", 5}}}}}, "tools.0.type");
  bad_response({{"tools", {{{"type", "function"}}}}}, "tools.0.name");
  bad_response({{"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", 5}}}}}, "tools.0.parameters");
  bad_response({{"tools", {kTool, kTool}}}, "tools.1.name");
  bad_response({{"tools", 5}}, "tools");
  bad_response({{"tool_choice", "sometimes"}}, "tool_choice");
  bad_response({{"tool_choice", {{"type", "web_search"}}}}, "tool_choice");
  bad_response({{"tool_choice", "required"}}, "tool_choice");
  bad_response({{"tools", {kTool}}, {"tool_choice", {{"type", "function"}, {"name", "g"}}}}, "tool_choice");
  bad_response({{"text", {{"format", "json"}}}}, "text.format");
  bad_response({{"text", {{"format", {{"type", "xml"}}}}}}, "text.format");
  bad_response({{"metadata", {{"k", 5}}}}, "metadata.k");
  bad_response({{"metadata", 5}}, "metadata");
  bad_response({{"store", "yes"}}, "store");
}

}  // namespace
}  // namespace troupe::http
