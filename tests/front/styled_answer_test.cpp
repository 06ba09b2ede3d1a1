// Answers of /v1/responses and /v1/messages, through a session: whole ones, and the events of streams.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/parsing_context.h"
#include "support/served_book.h"

namespace troupe {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

const char kThoughtAndCalls[] =
    "why\n</think>\nhi 你\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "\"\\\"你\"}}\n</tool_call>\n<tool_call>\n"
    "{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\nbye";

struct Event {
  std::string type;
  json data;
};

class StyledAnswerTest : public ::testing::Test {
 protected:
  static Ask styled_ask(Api api, bool stream) {
    Ask out;
    out.exchange = 5;
    out.answer.id = "id-1";
    out.answer.model = "m\"odel";
    out.answer.created_s = 7;
    out.api = api;
    out.answer.settings = api == Api::responses ? R"("store":false,"tools":[])" : "";
    out.answer.stream = stream;
    out.generation.limits.tools = true;
    out.generation.sampling.temperature = 0.7f;
    return out;
  }

  void open(Ask request, const std::string& prompt = "q<think>\n") {
    book_ = std::make_unique<testing::ServedBook>(context_, KeySource({1, 0}));
    effects_ = {};
    book_->open(std::move(request));
    Encoded encoded;
    encoded.prompts = {testing::parsing_ids(prompt)};
    sequences_ = book_->encoded(5, std::move(encoded), 10, effects_).sequences;
  }

  void step(std::vector<TokenId> ids, Finish finish = Finish::none, const std::string& error = {}) {
    StepTokens out;
    SequenceTokens tokens;
    tokens.key = sequences_[0].key;
    tokens.tokens = static_cast<std::int32_t>(ids.size());
    tokens.finish = finish;
    if (!error.empty()) out.set_error(tokens, error);
    tokens.cached_tokens = std::exchange(cached_, 0);
    out.tokens = std::move(ids);
    out.sequences.push_back(tokens);
    book_->take(out, 20, Slice(), effects_);
  }

  /// The model writes this, a token a step, and ends.
  void write(const std::string& text, Finish finish = Finish::stop) {
    std::vector<TokenId> ids = testing::parsing_ids(text);
    if (finish == Finish::stop) ids.push_back(ByteTokenizer::kEos);
    for (std::size_t i = 0; i < ids.size(); ++i) step({ids[i]}, i + 1 == ids.size() ? finish : Finish::none);
  }

  json whole() const {
    EXPECT_EQ(effects_.outputs.size(), 1u);
    if (effects_.outputs.empty()) return {};
    std::string body = effects_.outputs[0].body;
    for (const std::string& part : effects_.outputs[0].more) body += part;
    return json::parse(body);
  }

  /// Every frame is "event: TYPE\ndata: JSON\n\n", and the JSON repeats the type.
  std::vector<Event> events() const {
    std::string all;
    for (const auto& output : effects_.outputs) all += output.body;
    std::vector<Event> out;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t line = all.find('\n', at), end = all.find("\n\n", at);
      EXPECT_EQ(all.substr(at, 7), "event: ");
      EXPECT_EQ(all.substr(line, 7), "\ndata: ");
      out.push_back({all.substr(at + 7, line - at - 7), json::parse(all.substr(line + 7, end - line - 7))});
      EXPECT_EQ(out.back().type, out.back().data["type"]);
      at = end + 2;
    }
    return out;
  }

  std::shared_ptr<const SessionContext> context_ = testing::parsing_context();
  std::unique_ptr<testing::ServedBook> book_;
  Effects effects_;
  std::vector<SequenceSpec> sequences_;
  std::int32_t cached_ = 0;
};

TEST_F(StyledAnswerTest, WholeResponse) {
  cached_ = 2;
  open(styled_ask(Api::responses, false));
  write(kThoughtAndCalls);
  const json answer = whole();
  EXPECT_EQ(answer["id"], "id-1");
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["created_at"], 7);
  EXPECT_EQ(answer["model"], "m\"odel");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["error"], nullptr);
  EXPECT_EQ(answer["incomplete_details"], nullptr);
  EXPECT_EQ(answer["store"], false);
  EXPECT_EQ(answer["temperature"], 0.7);
  const json& output = answer["output"];
  ASSERT_EQ(output.size(), 5u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["summary"], json::array());
  EXPECT_EQ(output[0]["content"], json::parse(R"([{"type":"reasoning_text","text":"why"}])"));
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["role"], "assistant");
  EXPECT_EQ(output[1]["content"],
            json::parse(R"([{"type":"output_text","annotations":[],"logprobs":[],"text":"hi 你"}])"));
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(json::parse(output[2]["arguments"].get<std::string>()), json({{"a", "\"你"}}));
  EXPECT_EQ(output[3]["name"], "g");
  EXPECT_EQ(output[4]["content"][0]["text"], "bye");
  for (const json& item : output) EXPECT_EQ(item["status"], "completed");
  EXPECT_TRUE(output[0]["id"].get<std::string>().starts_with("rs_"));
  EXPECT_TRUE(output[1]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_TRUE(output[2]["id"].get<std::string>().starts_with("fc_"));
  EXPECT_TRUE(output[2]["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
  EXPECT_NE(output[1]["id"], output[4]["id"]);
  const json& usage = answer["usage"];
  EXPECT_EQ(usage["input_tokens"], 3);
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_EQ(usage["total_tokens"].get<int>(), usage["output_tokens"].get<int>() + 3);
}

TEST_F(StyledAnswerTest, AStreamedResponseIsTheWholeOne) {
  open(styled_ask(Api::responses, false));
  write(kThoughtAndCalls);
  const json answer = whole();
  open(styled_ask(Api::responses, true));
  write(kThoughtAndCalls);
  const std::vector<Event> stream = events();
  const std::string part =
      "output_item.added content_part.added KIND.delta KIND.done content_part.done output_item.done ";
  const std::string call =
      "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done ";
  const auto of = [&](const std::string& kind) {
    std::string out = part;
    for (std::size_t at; (at = out.find("KIND")) != out.npos;) out.replace(at, 4, kind);
    return out;
  };
  std::string types;
  for (const Event& event : stream) {
    EXPECT_TRUE(event.type.starts_with("response."));
    const std::string type = event.type.substr(9);
    if (!types.ends_with(type + " ") || !type.ends_with("delta")) types += type + " ";
  }
  EXPECT_EQ(types, "created in_progress " + of("reasoning_text") + of("output_text") + call + call +
                       of("output_text") + "completed ");

  std::vector<std::string> grown(5);
  for (std::size_t i = 0; i < stream.size(); ++i) {
    const json& data = stream[i].data;
    EXPECT_EQ(data["sequence_number"], i);
    if (!data.contains("output_index")) continue;
    const std::size_t index = data["output_index"];
    const json& item = answer["output"][index];
    if (data.contains("delta")) grown[index] += data["delta"].get<std::string>();
    if (data.contains("item_id")) {
      EXPECT_EQ(data["item_id"], item["id"]);
    }
    if (stream[i].type == "response.output_item.done") {
      EXPECT_EQ(data["item"], item);
    }
    if (stream[i].type == "response.output_item.added") {
      EXPECT_EQ(data["item"]["status"], "in_progress");
      EXPECT_EQ(data["item"]["id"], item["id"]);
    }
    if (stream[i].type == "response.content_part.done") {
      EXPECT_EQ(data["part"], item["content"][0]);
    }
    if (stream[i].type == "response.output_text.done") {
      EXPECT_EQ(data["text"], item["content"][0]["text"]);
    }
    if (stream[i].type == "response.function_call_arguments.done") {
      EXPECT_EQ(data["arguments"], item["arguments"]);
    }
  }
  EXPECT_EQ(grown[0], "why");
  EXPECT_EQ(grown[1], "hi 你");
  EXPECT_EQ(grown[2], answer["output"][2]["arguments"]);
  EXPECT_EQ(stream.back().data["response"], answer);
  EXPECT_EQ(stream.front().data["response"]["status"], "in_progress");
  EXPECT_EQ(stream.front().data["response"]["output"], json::array());
  EXPECT_EQ(stream.front().data["response"]["usage"], nullptr);
  EXPECT_EQ(effects_.outputs.back().kind, http::Output::Kind::end);
}

TEST_F(StyledAnswerTest, ACutResponseIsIncomplete) {
  for (const bool stream : {false, true}) {
    open(styled_ask(Api::responses, stream));
    write("why</think>hi", Finish::length);
    const json answer = stream ? events().back().data["response"] : whole();
    EXPECT_EQ(answer["status"], "incomplete");
    EXPECT_EQ(answer["incomplete_details"], json({{"reason", "max_output_tokens"}}));
    EXPECT_EQ(answer["output"][0]["status"], "completed");
    EXPECT_EQ(answer["output"][1]["status"], "incomplete");
    if (stream) {
      EXPECT_EQ(events().back().type, "response.incomplete");
    }
  }
}

TEST_F(StyledAnswerTest, AFailedResponse) {
  open(styled_ask(Api::responses, true));
  step({'w'});
  step({}, Finish::error, "the \"worker\" failed");
  const std::vector<Event> stream = events();
  EXPECT_EQ(stream.back().type, "response.failed");
  EXPECT_EQ(stream.back().data["response"]["status"], "failed");
  EXPECT_EQ(stream.back().data["response"]["error"],
            json({{"code", "server_error"}, {"message", "the \"worker\" failed"}}));
  EXPECT_EQ(stream.back().data["sequence_number"], stream.size() - 1);
  EXPECT_TRUE(effects_.outputs.back().failed);

  open(styled_ask(Api::responses, true));
  step({}, Finish::error, "lost");
  EXPECT_EQ(whole()["error"]["type"], "server_error");  // nothing was sent: an error with its HTTP status
  EXPECT_EQ(effects_.outputs[0].status, 500);
}

TEST_F(StyledAnswerTest, ATooLongPromptNamesTheField) {
  for (const auto& [api, field] : {std::pair(Api::responses, "input"), std::pair(Api::chat, "messages")}) {
    open(styled_ask(api, false), std::string(1000, 'x'));
    EXPECT_EQ(whole()["error"]["param"], field);
    EXPECT_EQ(whole()["error"]["code"], "context_length_exceeded");
  }
  open(styled_ask(Api::messages, false), std::string(1000, 'x'));
  EXPECT_EQ(whole()["type"], "error");
  EXPECT_EQ(whole()["error"]["type"], "invalid_request_error");
}

TEST_F(StyledAnswerTest, WholeMessage) {
  cached_ = 2;
  open(styled_ask(Api::messages, false));
  write(kThoughtAndCalls);
  const json answer = whole();
  EXPECT_EQ(answer["id"], "id-1");
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "m\"odel");
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_EQ(answer["stop_sequence"], nullptr);
  const json& content = answer["content"];
  ASSERT_EQ(content.size(), 5u);
  EXPECT_EQ(content[0], json::parse(R"({"type":"thinking","thinking":"why","signature":""})"));
  EXPECT_EQ(content[1], json::parse(R"({"type":"text","text":"hi 你","citations":null})"));
  EXPECT_EQ(content[2]["type"], "tool_use");
  EXPECT_EQ(content[2]["name"], "f");
  EXPECT_EQ(content[2]["input"], json({{"a", "\"你"}}));
  EXPECT_TRUE(content[2]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(content[3]["input"], json::object());
  EXPECT_NE(content[2]["id"], content[3]["id"]);
  EXPECT_EQ(answer["usage"]["input_tokens"], 1);
  EXPECT_EQ(answer["usage"]["cache_read_input_tokens"], 2);
  EXPECT_EQ(answer["usage"]["output_tokens_details"]["thinking_tokens"], 4);
}

TEST_F(StyledAnswerTest, AStreamedMessageIsTheWholeOne) {
  open(styled_ask(Api::messages, false));
  write(kThoughtAndCalls);
  const json answer = whole();
  open(styled_ask(Api::messages, true));
  write(kThoughtAndCalls);
  const std::vector<Event> stream = events();
  json joined = stream[0].data["message"];
  EXPECT_EQ(stream[0].type, "message_start");
  EXPECT_EQ(joined["stop_reason"], nullptr);
  EXPECT_EQ(stream[1].type, "ping");
  std::vector<std::string> inputs(5);
  std::size_t open_block = 5;
  for (const Event& event : stream) {
    if (event.type == "content_block_start") {
      EXPECT_EQ(open_block, 5u) << "a block begins in another";
      open_block = event.data["index"];
      EXPECT_EQ(open_block, joined["content"].size());
      joined["content"].push_back(event.data["content_block"]);
    } else if (event.type == "content_block_delta") {
      ASSERT_EQ(event.data["index"], open_block);
      json& block = joined["content"][open_block];
      const json& delta = event.data["delta"];
      for (const auto& [type, key] :
           {std::pair("text_delta", "text"), std::pair("thinking_delta", "thinking")}) {
        if (delta["type"] == type) block[key] = block[key].get<std::string>() + delta[key].get<std::string>();
      }
      if (delta["type"] == "input_json_delta") inputs[open_block] += delta["partial_json"].get<std::string>();
    } else if (event.type == "content_block_stop") {
      EXPECT_EQ(event.data["index"], open_block);
      if (!inputs[open_block].empty())
        joined["content"][open_block]["input"] = json::parse(inputs[open_block]);
      open_block = 5;
    } else if (event.type == "message_delta") {
      joined.update(event.data["delta"]);
      joined["usage"] = event.data["usage"];
    }
  }
  EXPECT_EQ(joined, answer);
  EXPECT_EQ(stream.back().type, "message_stop");
  EXPECT_EQ(effects_.outputs.back().kind, http::Output::Kind::end);
}

TEST_F(StyledAnswerTest, WhyAMessageEnds) {
  struct Row {
    const char* text;
    Finish finish;
    const char* reason;
    json sequence;
  };
  for (const Row& row : {Row{"</think>hi", Finish::stop, "end_turn", nullptr},
                         Row{"</think>hi", Finish::length, "max_tokens", nullptr},
                         Row{"</think>hi END", Finish::stop, "stop_sequence", "END"},
                         Row{"why", Finish::length, "max_tokens", nullptr}}) {
    for (const bool stream : {false, true}) {
      Ask request = styled_ask(Api::messages, stream);
      request.generation.stop = {"DONE", "END"};
      open(std::move(request));
      write(row.text, row.finish);
      const json answer = stream ? events()[events().size() - 2].data["delta"] : whole();
      EXPECT_EQ(answer["stop_reason"], row.reason) << row.text;
      EXPECT_EQ(answer["stop_sequence"], row.sequence) << row.text;
    }
  }
}

TEST_F(StyledAnswerTest, TheInputOfACutCallIsAnObject) {
  open(styled_ask(Api::messages, false));
  write("</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", Finish::length);
  EXPECT_EQ(whole()["content"][0]["input"], json::object());
  EXPECT_EQ(whole()["stop_reason"], "max_tokens");
}

TEST_F(StyledAnswerTest, AFailedMessage) {
  open(styled_ask(Api::messages, true));
  step({'w'});
  step({}, Finish::aborted, "the worker is being restarted");
  EXPECT_EQ(events().back().type, "error");
  EXPECT_EQ(events().back().data["error"],
            json({{"type", "overloaded_error"}, {"message", "the worker is being restarted"}}));
  EXPECT_TRUE(effects_.outputs.back().failed);
}

}  // namespace
}  // namespace troupe
