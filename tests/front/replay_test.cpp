// Answers that are sent back as part of the next request, in the form of every API, through every chat
// template of the fixtures: whatever an answer was, the conversation goes on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "actors/tokenizer/encoder.h"
#include "http/api/messages_answer.h"
#include "http/api/messages_request.h"
#include "http/api/openai_response.h"
#include "http/api/responses_answer.h"
#include "http/api/responses_request.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

using nlohmann::json;

/// What a model has written.
struct Written {
  const char* name;
  std::string thoughts;
  std::string text;
  std::vector<std::string> calls;  ///< the arguments of each, as the model wrote them
  http::FinishReason finish = http::FinishReason::stop;
  bool legacy = false;
};

const Written kWritten[] = {
    {"text", "", "It is sunny.", {}},
    {"nothing", "", "", {}},
    {"cut text", "", "It is su", {}, http::FinishReason::length},
    {"thoughts cut before the answer", "Let me", "", {}, http::FinishReason::length},
    {"thoughts and text", "Let me see.", "It is sunny.", {}},
    {"calls", "", "", {R"({"city": "Paris"})", "{}"}, http::FinishReason::tool_calls},
    {"thoughts and calls", "Let me see.", "", {R"({"city": "Paris"})"}, http::FinishReason::tool_calls},
    {"text and calls", "", "It is sunny.", {R"({"city": "Paris"})"}, http::FinishReason::tool_calls},
    {"a cut call", "", "", {R"({"city": "Paris)"}, http::FinishReason::length},
    {"a call that is no JSON", "", "", {"{\"city\": Paris,\n}"}, http::FinishReason::tool_calls},
    {"function_call", "", "", {R"({"city": "Paris"})"}, http::FinishReason::function_call, true},
};

std::vector<http::AnswerPart> parts_of(const Written& written) {
  using Kind = http::AnswerPart::Kind;
  std::vector<http::AnswerPart> parts;
  const auto add = [&](Kind kind, const std::string& text) {
    const std::string number = std::to_string(parts.size());
    parts.push_back({kind, "part_" + number, kind == Kind::call ? "call_" + number : "",
                     kind == Kind::call ? "get_weather" : "", text,
                     written.finish != http::FinishReason::length});
  };
  if (!written.thoughts.empty()) add(Kind::thoughts, written.thoughts);
  if (!written.text.empty()) add(Kind::text, written.text);
  for (const std::string& arguments : written.calls) add(Kind::call, arguments);
  return parts;
}

json chat_message(const Written& written) {
  http::AnswerChoice choice;
  choice.text = written.text;
  choice.reasoning = written.thoughts;
  choice.finish = written.finish;
  choice.legacy_calls = written.legacy;
  for (const std::string& arguments : written.calls) {
    const auto index = static_cast<std::int32_t>(choice.calls.size());
    choice.calls.push_back({index, "chatcmpl-tool-" + std::to_string(index), "get_weather", arguments});
  }
  const http::AnswerFrame frame(http::Api::chat, "chatcmpl-1", "demo", 1);
  return json::parse(http::format_answer(frame, {&choice, 1}, {}))["choices"][0]["message"];
}

json response_output(const Written& written) {
  std::string out;
  http::append_response(out, http::ResponseFrame("resp_1", "demo", 1, "", 0, 1), parts_of(written), {});
  return json::parse(out)["output"];
}

json message_content(const Written& written) {
  return json::parse(
      http::format_message("msg_1", "demo", parts_of(written), {"end_turn", {}}, {}))["content"];
}

const config::LimitOptions kReplayLimits;
const http::ModelFacts kReplayModel{.names = {"demo"}, .vocab_size = 0};
const http::RequestRules kReplayRules{kReplayLimits, kReplayModel};

using Parse = Result<http::Parsed> (*)(std::string_view, const http::RequestRules&);

struct Sent {
  std::string label;
  Parse parse;
  json body;
};

/// The conversations that go on behind the answer, in the forms in which clients send it back. `results`:
/// with what the tools gave.
std::vector<Sent> sent_back(const Written& written, bool results) {
  std::vector<Sent> out;
  const json ask = {{"role", "user"}, {"content", "q"}}, next = {{"role", "user"}, {"content", "And now?"}};

  json plain = chat_message(written);
  json bare = json::object();  // without the members that are null, as some clients send it
  for (const auto& [key, value] : plain.items()) {
    if (!value.is_null()) bare[key] = value;
  }
  json dumped = plain;  // with all members that a client's type has
  for (const char* name : {"function_call", "tool_calls", "audio", "name", "content"}) {
    if (!dumped.contains(name)) dumped[name] = nullptr;
  }
  json parts = plain;  // with its text as a list of parts
  if (parts["content"].is_string()) parts["content"] = {{{"type", "text"}, {"text", parts["content"]}}};
  json no_calls = plain;
  if (!no_calls.contains("tool_calls") || no_calls["tool_calls"].is_null())
    no_calls["tool_calls"] = json::array();
  if (written.legacy) no_calls.erase("tool_calls");
  json renamed = plain;
  renamed.erase("reasoning_content");
  const std::pair<const char*, json> forms[] = {{"as told", plain},     {"bare", bare},
                                                {"dumped", dumped},     {"parts", parts},
                                                {"no calls", no_calls}, {"reasoning alone", renamed}};
  for (const auto& [form, message] : forms) {
    json messages = {ask, message};
    if (results && message.contains("tool_calls") && message["tool_calls"].is_array()) {
      for (const json& call : message["tool_calls"]) {
        messages.push_back({{"role", "tool"},
                            {"tool_call_id", call["id"]},
                            {"content", {{{"type", "text"}, {"text", "17 °C"}}}}});
      }
    }
    messages.push_back(next);
    out.push_back({std::string("chat, ") + form, http::parse_chat, {{"messages", messages}}});
  }

  json input = {ask};
  json result_items = json::array(), result_blocks = json::array();
  for (const json& item : response_output(written)) {
    input.push_back(item);
    if (item["type"] != "function_call") continue;
    result_items.push_back(
        {{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "17 °C"}});
  }
  if (results) input.insert(input.end(), result_items.begin(), result_items.end());
  input.push_back(next);
  if (input.size() > 2)  // a response without items leaves nothing to send back
    out.push_back({"responses", http::parse_responses, {{"input", input}}});

  const json content = message_content(written);
  for (const json& block : content) {
    if (block["type"] == "tool_use")
      result_blocks.push_back({{"type", "tool_result"}, {"tool_use_id", block["id"]}, {"content", "17 °C"}});
  }
  json blocks = results ? result_blocks : json::array();
  blocks.push_back({{"type", "text"}, {"text", "And now?"}});
  const json turns = {
      ask, {{"role", "assistant"}, {"content", content}}, {{"role", "user"}, {"content", blocks}}};
  out.push_back({"messages", http::parse_messages, {{"messages", turns}, {"max_tokens", 5}}});
  return out;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class Replay : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = std::filesystem::path(TROUPE_TEST_DATA) / "text";
    auto tokenizer = Tokenizer::load((folder / "byte_level").string());
    ASSERT_TRUE(tokenizer.ok());
    const auto special =
        nlohmann::ordered_json::parse(read_text(folder / "chat_cases.json"))["special_tokens"];
    for (const auto& file : std::filesystem::directory_iterator(folder / "templates")) {
      auto chat = ChatTemplate::compile(read_text(file.path()), special);
      ASSERT_TRUE(chat.ok()) << file.path();
      encoders_.emplace(file.path().stem().string(), Encoder(*tokenizer, *chat));
    }
    ASSERT_GE(encoders_.size(), 6u);
  }

  /// The prompt, or a failure.
  static Result<std::string> prompt_of(const Encoder& encoder, const Sent& sent) {
    auto parsed = sent.parse(sent.body.dump(), kReplayRules);
    if (!parsed.ok()) return parsed.status();
    Encode job;
    job.source.conversation = std::move(parsed->request.source.conversation);
    const Encoded encoded = encoder.encode(std::move(job));
    if (!encoded.status.ok()) return encoded.status;
    Detokenizer detokenizer(encoder.tokenizer(), /*skip_special_tokens=*/false);
    std::string text;
    for (const TokenId id : encoded.prompts.at(0)) text += detokenizer.append(id);
    return text + detokenizer.flush();
  }

  std::map<std::string, Encoder> encoders_;
};

TEST_F(Replay, EveryAnswerIsTakenBackInEveryFormByEveryTemplate) {
  int rendered = 0;
  for (const Written& written : kWritten) {
    for (const Sent& sent : sent_back(written, /*results=*/false)) {
      for (const auto& [name, encoder] : encoders_) {
        const auto prompt = prompt_of(encoder, sent);
        const std::string label = std::string(written.name) + ", " + sent.label + ", " + name;
        ASSERT_TRUE(prompt.ok()) << label << ": " << prompt.status().message;
        EXPECT_NE(prompt->find("And now?"), std::string::npos) << label;
        EXPECT_EQ(prompt->find("None"), std::string::npos) << label << ": " << *prompt;
        if (written.calls.empty()) {
          EXPECT_NE(prompt->find(written.text), std::string::npos) << label << ": " << *prompt;
        }
        ++rendered;
      }
    }
  }
  EXPECT_GE(rendered, (11 * 8 - 1) * 6);
}

TEST_F(Replay, CallsAndTheirResultsAreShownByTemplatesOfTools) {
  for (const Written& written : kWritten) {
    if (written.calls.empty() || written.legacy) continue;
    for (const Sent& sent : sent_back(written, /*results=*/true)) {
      for (const char* name : {"chatml_features", "ernie45_thinking"}) {
        const auto prompt = prompt_of(encoders_.at(name), sent);
        const std::string label = std::string(written.name) + ", " + sent.label + ", " + name;
        ASSERT_TRUE(prompt.ok()) << label << ": " << prompt.status().message;
        EXPECT_NE(prompt->find("17 °C"), std::string::npos) << label;
        EXPECT_NE(prompt->find("get_weather"), std::string::npos) << label;
        // /v1/messages tells of a call that is no JSON as {}: its input is an object.
        const bool shown = sent.label != "messages" || json::accept(written.calls[0]);
        EXPECT_EQ(prompt->find("Paris") != std::string::npos, shown) << label << ": " << *prompt;
      }
    }
  }
}

TEST_F(Replay, TextBehindACallIsTextOfTheSameTurn) {
  using Kind = http::AnswerPart::Kind;
  const std::vector<http::AnswerPart> parts = {{Kind::text, "p0", "", "", "First. ", true},
                                               {Kind::call, "p1", "call_1", "f", "{}", true},
                                               {Kind::text, "p2", "", "", "Last.", true}};
  const json content =
      json::parse(http::format_message("msg_1", "demo", parts, {"end_turn", {}}, {}))["content"];
  const json turns = {{{"role", "user"}, {"content", "q"}},
                      {{"role", "assistant"}, {"content", content}},
                      {{"role", "user"}, {"content", "n"}}};
  const auto parsed = http::parse_messages(json{{"messages", turns}, {"max_tokens", 5}}.dump(), kReplayRules);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  const http::Json& messages = parsed.value().request.source.conversation.messages;
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1]["content"], "First. Last.");
  EXPECT_EQ(messages[1]["tool_calls"].size(), 1u);
}

}  // namespace
}  // namespace troupe
