// Answers, byte by byte where the bytes are the contract, and always valid JSON however odd the text.
#include "http/api/openai_response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "http/api/json_text.h"
#include "http/api/openai_error.h"

namespace troupe::http {
namespace {

using nlohmann::json;

const AnswerFrame kChat(Api::chat, "chatcmpl-1", "demo", 1700000000);
const AnswerFrame kText(Api::completions, "cmpl-1", "de\"mo", 1700000000);
const std::string kChatHead =
    R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"demo","choices":[)";

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

json event(const std::string& frame) {
  EXPECT_TRUE(frame.starts_with("data: ") && frame.ends_with("\n\n")) << frame;
  EXPECT_EQ(frame.find('\n'), frame.size() - 2) << "an event must be one line";
  return json::parse(frame.substr(6));
}

std::vector<TokenLogprob> two_tokens() {
  TokenLogprob first{.token = {"a\xE4", 5, -0.5f}};
  first.top = {{"a\xE4", 5, -0.5f}, {"b", 6, -1.25f}};
  TokenLogprob second{.token = {"\xBD\xA0", 7, -std::numeric_limits<float>::infinity()}};
  return {first, second};
}

TEST(JsonText, EscapesWhatJsonDemandsAndNothingElse) {
  EXPECT_EQ(quoted("a\"b\\c/\b\f\n\r\t"), R"("a\"b\\c/\b\f\n\r\t")");
  EXPECT_EQ(quoted(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
  EXPECT_EQ(quoted("你好 😀 é"), "\"你好 😀 é\"");
  EXPECT_EQ(quoted("<script>\u2028"), "\"<script>\u2028\"");
}

TEST(JsonText, ReplacesEveryMaximalInvalidPart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(quoted("a\xE4\xBD"), "\"a" + r + "\"");                        // truncated character
  EXPECT_EQ(quoted("\xE4\xBD\xE4\xBD\xA0"), "\"" + r + "\xE4\xBD\xA0\"");  // then a whole one
  EXPECT_EQ(quoted("\xED\xA0\x80"), "\"" + r + r + r + "\"");              // surrogate
  EXPECT_EQ(quoted("\xC0\xAF"), "\"" + r + r + "\"");                      // overlong
  EXPECT_EQ(quoted("\xF5\x80\xFF"), "\"" + r + r + r + "\"");              // beyond Unicode
  EXPECT_EQ(quoted("\xF0\x9F\x98\"x"), "\"" + r + "\\\"x\"");              // a quote must not be swallowed
}

TEST(JsonText, EveryPairOfBytesGivesValidJson) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const char text[] = {static_cast<char>(a), static_cast<char>(b), 'x'};
      ASSERT_TRUE(json::accept(quoted({text, 3}))) << a << " " << b;
      if (a < 0x80 && b < 0x80) {
        ASSERT_EQ(json::parse(quoted({text, 3})).get<std::string>(), std::string(text, 3));
      }
    }
  }
}

TEST(Chunk, ChatRoleThenTextThenEnd) {
  std::string out;
  append_role(out, kChat, 0);
  EXPECT_EQ(
      out,
      kChatHead +
          R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})" +
          "\n\n");
  out.clear();
  append_piece(out, kChat, {.index = 1, .text = "Hi\n"});
  EXPECT_EQ(out, kChatHead +
                     R"({"index":1,"delta":{"content":"Hi\n"},"logprobs":null,"finish_reason":null}]})" +
                     "\n\n");
  out.clear();
  append_piece(out, kChat, {.finish = FinishReason::length});
  EXPECT_EQ(out, kChatHead + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]})" + "\n\n");
  out.clear();
  append_usage(out, kChat,
               {.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 2, .reasoning_tokens = 1});
  EXPECT_EQ(
      out,
      kChatHead +
          R"(],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}}})" +
          "\n\n");
  out.clear();
  append_usage(out, kChat, {.prompt_tokens = 3, .image_tokens = 2});
  EXPECT_NE(out.find(R"("prompt_tokens_details":{"cached_tokens":0,"image_tokens":2,"video_tokens":0},)"),
            out.npos)
      << out;
  out.clear();
  append_done(out);
  EXPECT_EQ(out, "data: [DONE]\n\n");
}

TEST(Chunk, UsageOfSpeculation) {
  std::string out;
  append_usage(out, kChat,
               {.completion_tokens = 4, .speculates = true, .draft_tokens = 6, .accepted_draft_tokens = 2});
  EXPECT_EQ(event(out)["usage"]["speculation"],
            json::parse(R"({"draft_tokens":6,"accepted_draft_tokens":2})"));
  EXPECT_EQ(out.find("prediction"), std::string::npos);
  out.clear();
  append_usage(out, kChat,
               {.has_prediction = true, .accepted_prediction_tokens = 3, .rejected_prediction_tokens = 1});
  EXPECT_EQ(
      event(out)["usage"]["completion_tokens_details"],
      json::parse(R"({"reasoning_tokens":0,"accepted_prediction_tokens":3,"rejected_prediction_tokens":1})"));
  EXPECT_EQ(out.find("speculation"), std::string::npos);
}

TEST(Chunk, CompletionPiece) {
  std::string out;
  append_piece(out, kText, {.index = 2, .text = "x", .finish = FinishReason::stop});
  EXPECT_EQ(
      out,
      R"(data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"de\"mo","choices":[)"
      R"({"index":2,"text":"x","logprobs":null,"finish_reason":"stop"}]})"
      "\n\n");
}

TEST(Chunk, OptionalParts) {
  const Usage usage{.prompt_tokens = 1, .completion_tokens = 2};
  const std::vector<TokenId> ids = {7, 8};
  std::string out;
  append_piece(out, kChat, {.text = "a", .reasoning = "b", .token_ids = ids, .usage = &usage});
  const json chunk = event(out);
  EXPECT_EQ(
      chunk["choices"][0]["delta"],
      json::parse(R"({"content":"a","reasoning_content":"b","reasoning":"b","completion_token_ids":[7,8]})"));
  EXPECT_EQ(chunk["usage"]["total_tokens"], 3);
  out.clear();
  append_role(out, kChat, 0, ids);
  EXPECT_EQ(event(out)["choices"][0]["delta"]["prompt_token_ids"], json({7, 8}));
}

TEST(Chunk, ToolCalls) {
  const std::vector<ToolCall> calls = {{0, {}, {}, "\"}"}, {1, "chatcmpl-tool-1", "f", "{"}};
  std::string out;
  append_piece(out, kChat, {.calls = calls});
  EXPECT_EQ(event(out)["choices"][0]["delta"],
            json::parse(R"({"tool_calls":[{"index":0,"function":{"arguments":"\"}"}},)"
                        R"({"index":1,"id":"chatcmpl-tool-1","type":"function",)"
                        R"("function":{"name":"f","arguments":"{"}}]})"));
  out.clear();
  append_piece(
      out, kChat,
      {.calls = std::span(calls).subspan(1), .legacy_calls = true, .finish = FinishReason::function_call});
  EXPECT_EQ(event(out)["choices"][0]["delta"],
            json::parse(R"({"function_call":{"name":"f","arguments":"{"}})"));
  EXPECT_EQ(event(out)["choices"][0]["finish_reason"], "function_call");
}

TEST(Answer, ToolCalls) {
  const std::vector<ToolCall> calls = {{0, "chatcmpl-tool-1", "f", "{}"},
                                       {1, "chatcmpl-tool-2", "g", "{\"a\":1}"}};
  const std::vector<AnswerChoice> choices = {{.calls = calls},
                                             {.text = "Let me see.", .calls = calls, .legacy_calls = true}};
  const json answer =
      json::parse(format_answer(kChat, choices, {.completion_tokens = 9, .reasoning_tokens = 4}));
  const json message = answer["choices"][0]["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["reasoning"], nullptr);
  EXPECT_EQ(
      message["tool_calls"],
      json::parse(
          R"([{"id":"chatcmpl-tool-1","type":"function","function":{"name":"f","arguments":"{}"}},)"
          R"({"id":"chatcmpl-tool-2","type":"function","function":{"name":"g","arguments":"{\"a\":1}"}}])"));
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "Let me see.");
  EXPECT_EQ(answer["choices"][1]["message"]["function_call"],
            json::parse(R"({"name":"f","arguments":"{}"})"));
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
}

TEST(Logprobs, ChatDialect) {
  const auto tokens = two_tokens();
  std::string out;
  append_piece(out, kChat, {.text = "a", .logprobs = tokens, .with_logprobs = true});
  const json content = event(out)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "a\xEF\xBF\xBD");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["bytes"], json({97, 0xE4}));
  EXPECT_EQ(content[0]["top_logprobs"][1], json::parse(R"({"token":"b","logprob":-1.25,"bytes":[98]})"));
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_EQ(content[1]["top_logprobs"], json::array());
}

TEST(Logprobs, CompletionDialect) {
  auto tokens = two_tokens();
  tokens.insert(tokens.begin(), {.token = {"é!", 1, 0}, .known = false});
  std::string out;
  append_piece(out, kText, {.text = "x", .logprobs = tokens, .with_logprobs = true, .text_offset = 10});
  const json logprobs = event(out)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"é!", R"(bytes:\x61\xe4)", R"(bytes:\xbd\xa0)"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -0.5, -9999.0}));
  EXPECT_EQ(logprobs["text_offset"], json({10, 12, 14}));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], json::parse(R"({"bytes:\\x61\\xe4":-0.5,"b":-1.25})"));

  tokens[1].in_text = false;  // a special token, which the text does not have
  out.clear();
  append_piece(out, kText, {.text = "x", .logprobs = tokens, .with_logprobs = true, .text_offset = 10});
  EXPECT_EQ(event(out)["choices"][0]["logprobs"]["text_offset"], json({10, 12, 12}));
}

TEST(Answer, Chat) {
  const std::vector<AnswerChoice> choices = {{.index = 0, .text = "Hi", .finish = FinishReason::stop},
                                             {.index = 1,
                                              .text = "\"",
                                              .reasoning = "why",
                                              .finish = FinishReason::tool_calls,
                                              .with_logprobs = true,
                                              .logprobs = two_tokens(),
                                              .with_prompt_logprobs = true,
                                              .prompt_logprobs = two_tokens(),
                                              .prompt_token_ids = {1},
                                              .token_ids = {2}}};
  const json answer =
      json::parse(format_answer(kChat, choices, {.prompt_tokens = 1, .completion_tokens = 2}));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["id"], "chatcmpl-1");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hi");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "\"");
  EXPECT_EQ(answer["choices"][1]["message"]["reasoning_content"], "why");
  EXPECT_EQ(answer["choices"][1]["message"]["completion_token_ids"], json({2}));
  EXPECT_EQ(answer["choices"][1]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["choices"][1]["prompt_logprobs"][0]["6"]["rank"], 2);
  EXPECT_EQ(answer["usage"]["total_tokens"], 3);
}

TEST(Answer, CompletionModelsAndTokens) {
  const std::vector<AnswerChoice> choices = {{.text = "t", .finish = FinishReason::abort, .token_ids = {2}}};
  const json answer = json::parse(format_answer(kText, choices, {}));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "t");
  EXPECT_EQ(answer["choices"][0]["completion_token_ids"], json({2}));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "abort");
  const std::vector<ModelCard> cards = {{.id = "demo", .root = "/m", .created_s = 5, .max_model_len = 8192}};
  const json models = json::parse(format_models(cards));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(models["data"][0]["max_model_len"], 8192);
  EXPECT_EQ(json::parse(format_model(cards[0])), models["data"][0]);
  EXPECT_FALSE(models["data"][0].contains("capabilities"));
  ModelCard seeing = cards[0];
  seeing.sampling.temperature = 0.7f;
  seeing.sampling.top_k = 20;
  EXPECT_EQ(json::parse(format_model(seeing))["sampling_defaults"],
            json::parse(R"({"temperature":0.7,"top_p":1,"top_k":20,"min_p":0,"repetition_penalty":1,)"
                        R"("presence_penalty":0,"frequency_penalty":0})"));
  seeing.sees = true;
  EXPECT_EQ(json::parse(format_model(seeing))["capabilities"], json({{"vision", true}}));
  const std::vector<TokenId> ids = {4, 5};
  const std::vector<std::string> strs = {"a", "\xFF"};
  EXPECT_EQ(format_tokenized(ids, 9), R"({"count":2,"max_model_len":9,"tokens":[4,5]})");
  EXPECT_EQ(json::parse(format_tokenized(ids, 9, strs))["token_strs"].size(), 2u);
  EXPECT_EQ(format_detokenized("a\n"), R"({"prompt":"a\n"})");
}

TEST(Error, StatusesTypesAndRetries) {
  const std::vector<std::tuple<Status, int, std::string, std::string>> rows = {
      {invalid("m", "n", "out_of_range"), 400, "invalid_request_error", "out_of_range"},
      {invalid("m"), 400, "invalid_request_error", "invalid_value"},
      {failure(Code::unauthorized, "m"), 401, "authentication_error", "invalid_api_key"},
      {failure(Code::forbidden, "m"), 403, "permission_error", "forbidden"},
      {failure(Code::not_found, "m"), 404, "invalid_request_error", "not_found"},
      {invalid("m", {}, "method_not_allowed"), 405, "invalid_request_error", "method_not_allowed"},
      {invalid("m", {}, "request_timeout"), 408, "invalid_request_error", "request_timeout"},
      {failure(Code::too_large, "m"), 413, "invalid_request_error", "request_too_large"},
      {invalid("m", {}, "uri_too_long"), 414, "invalid_request_error", "uri_too_long"},
      {invalid("m", {}, "unsupported_media_type"), 415, "invalid_request_error", "unsupported_media_type"},
      {failure(Code::overloaded, "m"), 429, "rate_limit_error", "queue_full"},
      {invalid("m", {}, "too_many_headers"), 431, "invalid_request_error", "too_many_headers"},
      {failure(Code::unsupported, "m"), 400, "invalid_request_error", "unsupported_parameter"},
      {failure(Code::internal, "m"), 500, "server_error", "internal_error"},
      {invalid("m", {}, "not_implemented"), 501, "invalid_request_error", "not_implemented"},
      {failure(Code::unavailable, "m"), 503, "server_error", "unavailable"},
      {failure(Code::timeout, "m"), 504, "timeout_error", "timeout"}};
  for (const auto& [status, http, type, code] : rows) {
    const Output output = error_output(7, status);
    EXPECT_EQ(output.status, http);
    const json error = json::parse(output.body)["error"];
    EXPECT_EQ(error["type"], type);
    EXPECT_EQ(error["code"], code);
    EXPECT_EQ(error["message"], "m");
    EXPECT_EQ(error["param"], status.param.empty() ? json() : json(status.param));
    const bool retry = http == 429 || http == 503;
    EXPECT_EQ(output.headers.size(), retry ? 2u : http == 401 ? 1u : 0u);
  }
  const Output output = error_output(7, failure(Code::overloaded, "m"), 1500);
  EXPECT_EQ(output.headers[0], (std::pair<std::string, std::string>("Retry-After", "2")));
  EXPECT_EQ(output.headers[1], (std::pair<std::string, std::string>("retry-after-ms", "1500")));
  std::string out;
  append_error_event(out, failure(Code::internal, "line\nbreak"));
  EXPECT_EQ(event(out)["error"]["message"], "line\nbreak");
}

}  // namespace
}  // namespace troupe::http
