#include "text/template/plain_messages.h"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;

void erase_nulls(Json& object) {
  auto& members = object.get_ref<Json::object_t&>();
  const auto is_null = [](const auto& member) { return member.second.is_null(); };
  if (std::none_of(members.begin(), members.end(), is_null)) return;
  Json kept = Json::object();
  auto& into = kept.get_ref<Json::object_t&>();
  for (auto& [key, value] : members) {
    if (!value.is_null()) into.emplace_back(key, std::move(value));
  }
  object = std::move(kept);
}

/// The texts of a list of parts, a line each. Parts of another kind have been refused before.
std::string joined_parts(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    const auto found = part.find("text");
    if (found == part.end() || !found->is_string()) continue;
    if (!text.empty()) text += '\n';
    text += found->get_ref<const std::string&>();
  }
  return text;
}

/// A refusal stands for the content that an answer does not have.
void make_content_text(Json& message) {
  Json& content = message["content"];
  if (content.is_string()) return;
  if (content.is_array()) {
    content = joined_parts(content);
  } else if (content.is_null()) {
    const auto refusal = message.find("refusal");
    content = refusal != message.end() && refusal->is_string() ? Json(*refusal) : Json("");
  } else {
    content = content.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

void make_calls_plain(Json& message, bool takes_text) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  if (calls->empty()) {
    message.erase(calls);
    return;
  }
  for (Json& call : *calls) {
    erase_nulls(call);
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    erase_nulls(*function);
    Json& arguments = (*function)["arguments"];
    if (!arguments.is_object() && !(arguments.is_string() && takes_text)) arguments = Json::object();
  }
}

/// Whether the template shows arguments that are a text, whatever it asks of objects.
bool shows_text_arguments(const ChatTemplate& chat) {
  constexpr const char* kMark = "cut_here";
  Json messages = Json::array();
  messages.push_back({{"role", "user"}, {"content", "u"}});
  Json function = {{"name", "f"}, {"arguments", std::string("{\"") + kMark}};
  Json call = {{"id", "1"}, {"type", "function"}, {"function", std::move(function)}};
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({std::move(call)})}});
  const auto spans = chat.render(messages, nullptr, nullptr, false);
  return spans.ok() && std::any_of(spans->begin(), spans->end(), [&](const TextSpan& span) {
           return span.text.find(kMark) != span.text.npos;
         });
}

}  // namespace

PlainMessages::PlainMessages(const ChatTemplate* chat) : takes_text_arguments_(chat != nullptr && shows_text_arguments(*chat)) {}

void PlainMessages::apply(Json& messages) const {
  for (Json& message : messages) {
    if (!message.is_object()) continue;
    make_content_text(message);
    erase_nulls(message);
    if (!message.contains("reasoning_content") && message.contains("reasoning")) {
      Json thoughts = message["reasoning"];
      message["reasoning_content"] = std::move(thoughts);
    }
    make_calls_plain(message, takes_text_arguments_);
  }
}

}  // namespace troupe
