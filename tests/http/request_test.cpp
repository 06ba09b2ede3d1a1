// Request bodies: what good ones become, and for every bad one the field and the code it is refused with.
#include "http/api/openai_request.h"

#include <gtest/gtest.h>

#include <ctime>

#include <nlohmann/json.hpp>

#include "http/api/openai_error.h"

namespace troupe::http {
namespace {

using nlohmann::json;

const config::LimitOptions kLimits;
const ModelFacts kModel{
    .names = {"demo", "/models/demo", "default"}, .vocab_size = 1000, .tells_thoughts = true};
const RequestRules kRules{kLimits, kModel, "fresh"};

// A chat body with further members, given as the inside of an object.
std::string chat(const std::string& more = {}) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}
std::string completion(const std::string& more = {}) {
  return R"({"prompt":"x")" + (more.empty() ? "" : "," + more) + "}";
}

Request good_chat(const std::string& body) {
  auto parsed = parse_chat(body, kRules);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}
Request good_completion(const std::string& body) {
  auto parsed = parse_completion(body, kRules);
  EXPECT_TRUE(parsed.ok()) << body << ": " << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request) : Request();
}

void expect_status(const Status& status, const std::string& body, const std::string& param,
                   const std::string& code, int http = 400) {
  const std::string shown = body.substr(0, 100);
  EXPECT_EQ(status.param, param) << shown << ": " << status.message;
  EXPECT_EQ(status.reason, code) << shown << ": " << status.message;
  EXPECT_EQ(http_status(status), http) << shown;
  EXPECT_FALSE(status.message.empty());
  EXPECT_LT(status.message.size(), 300u);  // however long the offending value was
  EXPECT_EQ(json::parse(error_json(status)).at("error").at("type"), "invalid_request_error");
}
void bad_chat(const std::string& body, const std::string& param, const std::string& code, int http = 400) {
  expect_status(parse_chat(body, kRules).status(), body, param, code, http);
}
void bad_completion(const std::string& body, const std::string& param, const std::string& code,
                    int http = 400) {
  expect_status(parse_completion(body, kRules).status(), body, param, code, http);
}
// The same field in both APIs.
void bad_both(const std::string& member, const std::string& param, const std::string& code) {
  bad_chat(chat(member), param, code);
  bad_completion(completion(member), param, code);
}

std::string repeated(const std::string& item, int count) {
  std::string list = "[";
  for (int i = 0; i < count; ++i) list += (i > 0 ? "," : "") + item;
  return list + "]";
}

TEST(Request, ReadsEverySamplingField) {
  const Request request = good_chat(chat(
      R"("model":"demo","temperature":0.5,"top_p":0.9,"min_p":0.1,"top_k":40,"repetition_penalty":1.5,"presence_penalty":-2,
         "frequency_penalty":2,"max_tokens":5,"max_completion_tokens":7,"min_tokens":3,"seed":-9223372036854775808,"n":128,
         "stop":["a","b"],"stop_token_ids":[0,999],"logit_bias":{"0":-100,"999":100},"bad_words":["x"],
         "bad_words_token_ids":[3],"include_stop_str_in_output":true,"ignore_eos":true,"logprobs":true,"top_logprobs":20,
         "return_token_ids":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},
         "reasoning_max_tokens":4,"response_max_tokens":6,"disable_chat_template":true)"));
  const Generation& g = request.generation;
  const wire::Sampling& s = g.sampling;
  EXPECT_EQ(request.answer.model, "demo");
  EXPECT_EQ(to_text(request.source.conversation.messages), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.presence_penalty, -2);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(g.max_tokens, 7);  // the newer name wins
  EXPECT_EQ(s.min_tokens, 3);
  EXPECT_EQ(s.seed, std::uint64_t{1} << 63);
  EXPECT_EQ(g.choices, 128);
  EXPECT_EQ(g.best_of, 128);
  EXPECT_EQ(g.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(g.stop_ids, (std::vector<TokenId>{0, 999}));
  ASSERT_EQ(g.logit_bias.size(), 3u);
  EXPECT_EQ(std::pair(g.logit_bias[0].token, g.logit_bias[0].bias), std::pair(0, -100.f));
  EXPECT_EQ(std::pair(g.logit_bias[1].token, g.logit_bias[1].bias), std::pair(999, 100.f));
  EXPECT_EQ(g.logit_bias[2].token, 3);
  EXPECT_LT(g.logit_bias[2].bias, -1e9f);
  EXPECT_EQ(g.bad_words, std::vector<std::string>{"x"});
  EXPECT_EQ(s.logprobs, 20);
  EXPECT_TRUE(g.include_stop && g.ignore_eos && request.answer.return_token_ids && request.answer.stream &&
              request.answer.include_usage && request.answer.continuous_usage &&
              request.source.conversation.without_template);
  EXPECT_EQ(g.limits.thinking, 4);
  EXPECT_EQ(g.limits.response, 6);
}

TEST(Request, GivesDefaultsToWhatIsAbsentOrNull) {
  for (
      const std::string& body :
      {chat(),
       chat(
           R"("temperature":null,"top_p":null,"max_tokens":null,"seed":null,"n":null,"stop":null,"stream":null,
                        "logprobs":null,"tools":null,"model":null,"stream_options":null,"logit_bias":null)")}) {
    const Request request = good_chat(body);
    const wire::Sampling& s = request.generation.sampling;
    EXPECT_TRUE(s.temperature == 1 && s.top_p == 1 && s.repetition_penalty == 1);
    EXPECT_TRUE(s.min_p == 0 && s.top_k == 0 && s.presence_penalty == 0 && s.frequency_penalty == 0);
    EXPECT_TRUE(s.min_tokens == 0 && s.seed == 0 && s.logprobs == -1 && s.prompt_logprobs == -1);
    EXPECT_EQ(request.generation.max_tokens, -1);
    EXPECT_EQ(request.generation.choices, 1);
    EXPECT_EQ(request.answer.tokens_per_event, 1);
    EXPECT_FALSE(request.answer.stream || request.answer.include_usage || request.generation.ignore_eos);
    EXPECT_TRUE(request.source.conversation.tools.is_null() &&
                request.source.conversation.template_kwargs.is_null());
    EXPECT_EQ(request.answer.model, "demo");
    EXPECT_EQ(request.answer.id, "chatcmpl-fresh");
  }
}

TEST(Request, TakesIntegralFloatsAndOffValues) {
  const Generation g =
      good_chat(chat(R"("max_tokens":5.0,"top_k":-1,"stop":"x","seed":9223372036854775807)")).generation;
  EXPECT_EQ(g.max_tokens, 5);
  EXPECT_EQ(g.sampling.top_k, 0);
  EXPECT_EQ(g.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(g.sampling.seed, (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(good_completion(completion(R"("max_tokens":0,"echo":true,"logprobs":5)")).generation.max_tokens,
            0);
}

TEST(Request, NamesTheAnswer) {
  EXPECT_EQ(good_chat(chat(R"("request_id":"a1")")).answer.id, "chatcmpl-a1");
  EXPECT_EQ(good_chat(chat(R"("request_id":"chatcmpl-a1")")).answer.id, "chatcmpl-a1");
  EXPECT_EQ(good_chat(chat(R"("user":"eve")")).answer.id, "chatcmpl-eve-fresh");
  EXPECT_EQ(good_chat(chat(R"("user":"a b\"c")")).answer.id, "chatcmpl-fresh");
  EXPECT_EQ(good_completion(completion()).answer.id, "cmpl-fresh");
  bad_chat(chat(R"("request_id":"a b")"), "request_id", "invalid_value");
  bad_chat(chat(R"("request_id":5)"), "request_id", "invalid_type");
}

TEST(Request, KeepsTheOrderOfKeysInToolsAndTheLastOfRepeatedOnes) {
  const Request request = good_chat(chat(
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2,"m":3,"z":4}}}],"tool_choice":"auto")"));
  EXPECT_EQ(to_text(request.source.conversation.tools),
            R"([{"type":"function","function":{"name":"f","parameters":{"a":2,"m":3,"z":4}}}])");
  EXPECT_TRUE(good_chat(chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")"))
                  .source.conversation.tools.is_null());
}

TEST(Request, ReadsAConversation) {
  const Request request = good_chat(
      R"({"messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"é"}]},
          {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
          {"id":"2","type":"function","function":{"name":"g","arguments":""}}]},
          {"role":"tool","tool_call_id":"1","content":{"r":1}}]})");
  EXPECT_EQ(
      to_text(request.source.conversation.messages),
      R"([{"role":"system","content":"d"},{"role":"user","content":[{"type":"text","text":"é"}]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},)"
      R"({"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":{"r":1}}])");
}

TEST(Request, TemplateArguments) {
  const auto kwargs = [](const std::string& more) {
    return to_text(good_chat(chat(more)).source.conversation.template_kwargs);
  };
  EXPECT_EQ(kwargs(R"("chat_template_kwargs":{"enable_thinking":false,"options":{"thinking_mode":"open"}})"),
            R"({"enable_thinking":false,"options":{"thinking_mode":"open"}})");
  EXPECT_EQ(kwargs(R"("metadata":{"enable_thinking":true})"), R"({"enable_thinking":true})");
  EXPECT_EQ(kwargs(R"("metadata":{"enable_thinking":true},"chat_template_kwargs":{"enable_thinking":false})"),
            R"({"enable_thinking":false})");
  // Corpus row 48.
  bad_chat(chat(R"("chat_template_kwargs":{"tokenize":true})"), "chat_template_kwargs", "invalid_value");
  bad_chat(chat(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs", "invalid_value");
  bad_chat(chat(R"("chat_template_kwargs":{"a b":1})"), "chat_template_kwargs", "invalid_value");
  bad_chat(chat(R"("chat_template_kwargs":[1])"), "chat_template_kwargs", "invalid_value");
  bad_chat(chat(R"("chat_template_kwargs":{"x":")" + std::string(1 << 20, 'y') + "\"}"),
           "chat_template_kwargs", "invalid_value");
  bad_chat(chat(R"("metadata":5)"), "metadata", "invalid_type");
}

TEST(Request, ReadsPromptsOfEveryShape) {
  using Texts = std::vector<std::string>;
  using Prompts = std::vector<std::vector<TokenId>>;
  EXPECT_EQ(good_completion(R"({"prompt":"a"})").source.texts, Texts{"a"});
  EXPECT_EQ(good_completion(R"({"prompt":["a","b"]})").source.texts, (Texts{"a", "b"}));
  EXPECT_EQ(good_completion(R"({"prompt":[1,2]})").source.ids, (Prompts{{1, 2}}));
  EXPECT_EQ(good_completion(R"({"prompt":[[1],[2,3]]})").source.ids, (Prompts{{1}, {2, 3}}));
  const Source both = good_completion(R"({"prompt":"ignored","prompt_token_ids":[4]})").source;
  EXPECT_EQ(both.ids, (Prompts{{4}}));
  EXPECT_TRUE(both.texts.empty());
  const Source chat =
      good_chat(R"({"prompt_token_ids":[4,5],"messages":[{"role":"user","content":"x"}]})").source;
  EXPECT_EQ(chat.ids, (Prompts{{4, 5}}));
  EXPECT_TRUE(chat.conversation.messages.is_null()) << "the ids are the whole prompt";
}

TEST(Request, ReportsUnknownFieldsAndIgnoresKnownOnesWithoutEffect) {
  auto parsed = parse_chat(
      chat(R"("zebra":1,"store":true,"service_tier":"auto","parallel_tool_calls":true,"tiger":[2])"), kRules);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->ignored_fields, (std::vector<std::string>{"zebra", "tiger"}));
  std::string many;
  for (int i = 0; i < 100; ++i) many += "\"unknown" + std::to_string(i) + std::string(100, 'x') + "\":1,";
  parsed = parse_chat(chat(many + "\"n\":1"), kRules);
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->ignored_fields.size(), 8u);
  EXPECT_EQ(parsed->ignored_fields[0].size(), 64u);
  many.clear();
  for (int i = 0; i < 1000; ++i) many += "\"u" + std::to_string(i) + "\":1,";
  bad_chat(chat(many + "\"n\":1"), "", "too_many_elements");
}

TEST(Request, ReadsAPrediction) {
  Request request = good_chat(chat(R"("prediction":{"type":"content","content":"int x;"})"));
  EXPECT_TRUE(request.answer.has_prediction);
  EXPECT_EQ(request.source.prediction, "int x;");
  request = good_chat(chat(
      R"("prediction":{"type":"content","content":[{"type":"text","text":"a\n"},{"type":"text","text":"b"}]})"));
  EXPECT_EQ(request.source.prediction, "a\nb");
  EXPECT_TRUE(good_chat(chat(R"("prediction":{"type":"content","content":""})")).answer.has_prediction);
  EXPECT_FALSE(good_chat(chat(R"("prediction":null)")).answer.has_prediction);
  EXPECT_FALSE(
      good_completion(completion(R"("prediction":{"type":"content","content":"a"})")).answer.has_prediction);
  bad_chat(chat(R"("prediction":"a")"), "prediction", "invalid_type");
  bad_chat(chat(R"("prediction":{})"), "prediction.type", "missing_required_parameter");
  bad_chat(chat(R"("prediction":{"type":"text","content":"a"})"), "prediction.type", "invalid_value");
  bad_chat(chat(R"("prediction":{"type":"content"})"), "prediction.content", "missing_required_parameter");
  bad_chat(chat(R"("prediction":{"type":"content","content":null})"), "prediction.content",
           "missing_required_parameter");
  bad_chat(chat(R"("prediction":{"type":"content","content":7})"), "prediction.content", "invalid_type");
  bad_chat(chat(R"("prediction":{"type":"content","content":["a"]})"), "prediction.content.0.type",
           "invalid_value");
  bad_chat(
      chat(R"("prediction":{"type":"content","content":[{"type":"text","text":"a"},{"type":"image_url"}]})"),
      "prediction.content.1.type", "invalid_value");
  bad_chat(chat(R"("prediction":{"type":"content","content":[{"type":"text"}]})"),
           "prediction.content.0.text", "invalid_type");
}

TEST(Request, Row29Messages) {
  bad_chat("{}", "messages", "missing_required_parameter");
  bad_chat(R"({"messages":null})", "messages", "missing_required_parameter");
  bad_chat(R"({"messages":[]})", "messages", "empty_array");
  bad_chat(R"({"messages":"hi"})", "messages", "invalid_type");
  bad_chat(R"({"messages":)" + repeated(R"({"role":"user","content":"x"})", 4097) + "}", "messages",
           "too_many_elements");
}

TEST(Request, Row30RolesAndContents) {
  const auto bad = [](const std::string& message, const std::string& param, const std::string& code) {
    bad_chat(R"({"messages":[)" + message + "]}", param, code);
  };
  bad(R"({"role":"hacker","content":"x"})", "messages.0.role", "invalid_value");
  bad(R"({"role":5,"content":"x"})", "messages.0.role", "invalid_value");
  bad(R"({"content":"x"})", "messages.0.role", "invalid_value");
  bad(R"({"role":"user","content":5})", "messages.0.content", "invalid_value");
  bad(R"({"role":"user","content":{"r":1}})", "messages.0.content", "invalid_value");
  bad(R"({"role":"user"})", "messages.0.content", "missing_required_parameter");
  bad(R"({"role":"tool","content":"x"})", "messages.0.tool_call_id", "invalid_value");
  bad(R"({"role":"user","content":"x"},7)", "messages.1", "invalid_value");
  bad(R"({"role":"user","content":[{"type":"text"}]})", "messages.0.content.0.text", "invalid_value");
  bad(R"({"role":"user","content":["x"]})", "messages.0.content.0", "invalid_value");
  bad(R"({"role":"user","content":[{"type":"nope"}]})", "messages.0.content.0.type", "invalid_value");
  bad(R"({"role":"assistant","tool_calls":[{"function":{"name":5}}]})",
      "messages.0.tool_calls.0.function.name", "invalid_value");
  bad(R"({"role":"user","content":"x","tool_calls":[]})", "messages.0.tool_calls", "invalid_value");
  // Row 62.
  bad(R"({"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"http://x"}}]})",
      "messages.0.content.1", "unsupported_modality");
}

TEST(Request, Row31EmptyPrompts) {
  for (const char* prompt : {"\"\"", "[]", "[[]]", "[\"\"]", "[[1],[]]", "[\"a\",\"\"]"}) {
    bad_completion(R"({"prompt":)" + std::string(prompt) + "}", "prompt", "empty_prompt");
  }
  bad_completion("{}", "prompt", "missing_required_parameter");
  bad_completion(R"({"prompt":5})", "prompt", "invalid_type");
  bad_completion(R"({"prompt":["a",5]})", "prompt.1", "invalid_type");
  bad_completion(R"({"prompt":["a",[5]]})", "prompt.1", "invalid_type");
  bad_completion(R"({"prompt":[[5],"a"]})", "prompt.1", "invalid_type");
  bad_completion(R"({"prompt":)" + repeated("\"x\"", 257) + "}", "prompt", "too_many_elements");
}

TEST(Request, Row32TokenIds) {
  for (const char* id : {"-1", "1000", "2147483648", "1.5", "true", "null", "18446744073709551616"}) {
    bad_completion(R"({"prompt":[)" + std::string(id) + "]}", "prompt.0", "token_out_of_range");
    bad_chat(R"({"prompt_token_ids":[)" + std::string(id) + "]}", "prompt_token_ids.0", "token_out_of_range");
    bad_chat(chat(R"("stop_token_ids":[1,)" + std::string(id) + "]"), "stop_token_ids.1",
             "token_out_of_range");
  }
  bad_completion(R"({"prompt":[[1],[2,3000]]})", "prompt.1.1", "token_out_of_range");
}

TEST(Request, Row33SamplingRanges) {
  const std::vector<std::array<std::string, 2>> out = {{"temperature", "-0.1"},
                                                       {"temperature", "2.1"},
                                                       {"top_p", "-0.1"},
                                                       {"top_p", "1.1"},
                                                       {"top_k", "-2"},
                                                       {"top_k", "3000000000"},
                                                       {"presence_penalty", "2.1"},
                                                       {"presence_penalty", "-2.1"},
                                                       {"frequency_penalty", "2.1"},
                                                       {"frequency_penalty", "-2.1"},
                                                       {"repetition_penalty", "0"},
                                                       {"repetition_penalty", "1e-50"},
                                                       {"repetition_penalty", "-1"},
                                                       {"min_p", "-0.1"},
                                                       {"min_p", "1.1"}};
  for (const auto& [field, value] : out) bad_both("\"" + field + "\":" + value, field, "out_of_range");
  for (const char* field :
       {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}) {
    for (const char* value : {"\"hot\"", "true", "[]", "{}"}) {
      bad_both("\"" + std::string(field) + "\":" + value, field, "invalid_type");
    }
  }
}

TEST(Request, Row34And35ChoiceCounts) {
  for (const char* n :
       {"0", "-1", "129", "1000000000", "3000000000", "1.9", "true", "\"1\"", "18446744073709551616"}) {
    bad_both("\"n\":" + std::string(n), "n", "out_of_range");
  }
  for (const char* best_of : {"1000000", "0", "true"}) {
    bad_completion(completion("\"best_of\":" + std::string(best_of)), "best_of", "out_of_range");
  }
  bad_completion(completion(R"("best_of":2,"n":3)"), "best_of", "out_of_range");
  bad_completion(completion(R"("best_of":3,"n":2,"stream":true)"), "best_of", "invalid_value");
  EXPECT_EQ(good_completion(completion(R"("best_of":3,"n":2)")).generation.best_of, 3);
}

TEST(Request, CandidatesOfAllPromptsTogetherAreBounded) {
  const auto body = [](int prompts, const std::string& more) {
    return R"({"prompt":)" + repeated("\"x\"", prompts) + "," + more + "}";
  };
  EXPECT_EQ(good_completion(body(256, R"("n":4)")).generation.choices, 4);
  EXPECT_EQ(good_completion(body(8, R"("n":128)")).generation.choices, 128);
  bad_completion(body(256, R"("n":5)"), "n", "out_of_range");
  bad_completion(body(256, R"("n":128)"), "n", "out_of_range");
  bad_completion(body(256, R"("best_of":20)"), "best_of", "out_of_range");
}

TEST(Request, Row36And43Lengths) {
  for (const char* value : {"-1", "9223372036854775808", "1.5", "\"x\""}) {
    bad_both("\"max_tokens\":" + std::string(value), "max_tokens", "out_of_range");
    bad_both("\"max_completion_tokens\":" + std::string(value), "max_completion_tokens", "out_of_range");
    bad_both("\"min_tokens\":" + std::string(value), "min_tokens", "out_of_range");
  }
  bad_chat(chat(R"("max_tokens":0)"), "max_tokens", "out_of_range");
  bad_both(R"("min_tokens":5,"max_tokens":4)", "min_tokens", "out_of_range");
  bad_both(R"("priority":18446744073709551616)", "priority", "out_of_range");
  bad_both(R"("priority":2147483648)", "priority", "out_of_range");
  bad_both(R"("priority":"high")", "priority", "out_of_range");
  for (const char* value : {"0", "-1", "86401"}) {
    bad_both("\"timeout\":" + std::string(value), "timeout", "out_of_range");
  }
  bad_both(R"("timeout":"1")", "timeout", "invalid_type");
  bad_both(R"("cache":1)", "cache", "invalid_value");
  EXPECT_EQ(good_chat(chat(R"("prompt_cache_key":"k")")).together, "k");
  EXPECT_EQ(good_completion(completion(R"("prompt_cache_key":"k")")).together, "k");
  bad_both(R"("prompt_cache_key":7)", "prompt_cache_key", "invalid_type");
  bad_both(R"("cache_salt":7)", "cache_salt", "invalid_type");
  bad_both(R"("cache_salt":"")", "cache_salt", "invalid_value");
  bad_both(R"("bad_words":)" + repeated("\"x\"", 100'000), "bad_words", "out_of_range");
  bad_both(R"("bad_words":[""])", "bad_words.0", "invalid_value");
  EXPECT_EQ(good_chat(chat(R"("max_tokens":9223372036854775807)")).generation.max_tokens,
            std::numeric_limits<std::int32_t>::max());
}

TEST(Request, Row38Logprobs) {
  bad_chat(chat(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "out_of_range");
  bad_chat(chat(R"("logprobs":true,"top_logprobs":-1)"), "top_logprobs", "out_of_range");
  bad_chat(chat(R"("top_logprobs":5)"), "top_logprobs", "out_of_range");
  bad_chat(chat(R"("logprobs":1)"), "logprobs", "invalid_value");
  bad_completion(completion(R"("logprobs":1000000)"), "logprobs", "out_of_range");
  bad_completion(completion(R"("logprobs":21)"), "logprobs", "out_of_range");
  EXPECT_EQ(good_completion(completion(R"("logprobs":20)")).generation.sampling.logprobs, 20);
  bad_both(R"("prompt_logprobs":21)", "prompt_logprobs", "out_of_range");
  bad_both(R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", "invalid_value");
  EXPECT_EQ(good_chat(chat(R"("logprobs":true)")).generation.sampling.logprobs, 0);
}

TEST(Request, Row39LogitBias) {
  for (const char* bias :
       {R"({"-1":1})", R"({"abc":1})", R"({"99999999":1})", R"({"1":101})", R"({"1":-101})", R"({"1":"x"})",
        R"({"":1})", R"({"01":1})", R"({"1 ":1})", "[]", "5"}) {
    bad_both("\"logit_bias\":" + std::string(bias), "logit_bias", "invalid_value");
  }
  std::string entries;
  for (int i = 0; i < 1'000'000; ++i) entries += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  bad_chat(chat("\"logit_bias\":{" + entries + "}"), "logit_bias", "invalid_value");
  entries.resize(entries.find(",\"1025\""));
  bad_chat(chat("\"logit_bias\":{" + entries + "}"), "logit_bias", "invalid_value");
}

TEST(Request, Row40Stop) {
  bad_both("\"stop\":" + repeated("\"x\"", 17), "stop", "invalid_value");
  bad_both(R"("stop":"")", "stop", "invalid_value");
  bad_both(R"("stop":["a",""])", "stop", "invalid_value");
  bad_both(R"("stop":")" + std::string(1 << 20, 'x') + "\"", "stop", "invalid_value");
  bad_both(R"("stop":5)", "stop", "invalid_value");
  bad_both(R"("stop":["a",5])", "stop", "invalid_value");
  EXPECT_EQ(good_chat(chat("\"stop\":" + repeated("\"x\"", 16))).generation.stop.size(), 16u);
}

TEST(Request, Row41Seed) {
  for (const char* seed : {"9223372036854775808", "\"x\"", "1.5", "true", "-9223372036854775809"}) {
    bad_both("\"seed\":" + std::string(seed), "seed", "out_of_range");
  }
}

TEST(Request, Row42Model) {
  for (const char* name : {"gpt-9", "", "../../etc/passwd", "demo\\u0000", "Demo"}) {
    bad_chat(chat(R"("model":")" + std::string(name) + "\""), "model", "model_not_found", 404);
    bad_completion(completion(R"("model":")" + std::string(name) + "\""), "model", "model_not_found", 404);
  }
  bad_chat(chat(R"("model":")" + std::string(1 << 20, 'm') + "\""), "model", "model_not_found", 400);
  bad_chat(chat(R"("model":5)"), "model", "invalid_type");
  const auto answering = [](const std::string& name) {
    return good_chat(chat(R"("model":")" + name + "\"")).answer.model;
  };
  EXPECT_EQ(answering("demo"), "demo");
  EXPECT_EQ(answering("/models/demo"), "/models/demo");
  EXPECT_EQ(answering("default"), "demo");
}

TEST(Request, Row44Stream) {
  bad_both(R"("stream_options":{"include_usage":true})", "stream_options", "invalid_value");
  bad_both(R"("stream":"yes")", "stream", "invalid_value");
  bad_both(R"("stream":true,"stream_options":5)", "stream_options", "invalid_value");
  bad_both(R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
           "invalid_value");
}

TEST(Request, RefusesWhatIsNotOffered) {
  for (const char* member : {R"("guided_whitespace_pattern":" ")", R"("logits_processors_args":{})",
                             R"("chat_template":"{{x}}")", R"("temp_scaled_logprobs":true)"}) {
    const std::string text(member);
    bad_both(text, text.substr(1, text.find('"', 1) - 1), "unsupported_parameter");
  }
  bad_completion(completion(R"("suffix":"x")"), "suffix", "unsupported_parameter");
  good_completion(
      completion(R"("suffix":"","response_format":{"type":"text"},"temp_scaled_logprobs":false)"));
}

TEST(Request, TokenizeAndDetokenize) {
  auto tokenize = parse_tokenize(R"({"prompt":"","add_special_tokens":false})", kRules);
  ASSERT_TRUE(tokenize.ok());
  EXPECT_EQ(tokenize->request.api, Api::tokenize);
  EXPECT_EQ(tokenize->request.source.texts, std::vector<std::string>{""});
  tokenize = parse_tokenize(chat(R"("add_generation_prompt":false,"return_token_strs":true)"), kRules);
  ASSERT_TRUE(tokenize.ok());
  EXPECT_TRUE(tokenize->request.source.texts.empty());
  EXPECT_TRUE(tokenize->request.answer.return_token_ids);
  EXPECT_EQ(to_text(tokenize->request.source.conversation.messages), R"([{"role":"user","content":"hi"}])");
  EXPECT_FALSE(tokenize->request.source.conversation.add_generation_prompt);
  expect_status(parse_tokenize("{}", kRules).status(), "{}", "prompt", "missing_required_parameter");
  expect_status(parse_tokenize(chat(R"("prompt":"x")"), kRules).status(), "both", "messages",
                "invalid_value");
  auto detokenize = parse_detokenize(R"({"tokens":[1,2]})", kRules);
  ASSERT_TRUE(detokenize.ok());
  EXPECT_EQ(detokenize->request.api, Api::detokenize);
  EXPECT_EQ(detokenize->request.source.ids, (std::vector<std::vector<TokenId>>{{1, 2}}));
  expect_status(parse_detokenize("{}", kRules).status(), "{}", "tokens", "missing_required_parameter");
  expect_status(parse_detokenize(R"({"tokens":[1000]})", kRules).status(), "", "tokens.0",
                "token_out_of_range");
}

TEST(Request, ObjectsWithManyKeysTakeLinearTime) {
  const auto processor_time = [](int keys) {
    std::string entries;
    for (int i = 0; i < keys; ++i) entries += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
    const std::string body = chat("\"metadata\":7,\"extra\":{" + entries + "}");
    const std::clock_t begin = std::clock();
    bad_chat(body, "metadata", "invalid_type");
    return static_cast<double>(std::clock() - begin);
  };
  const double few = processor_time(25'000);
  EXPECT_LT(processor_time(400'000), 64 * few);  // 16 times the keys; quadratic: 256 times the work
}

}  // namespace
}  // namespace troupe::http
