#include "text/template/plain_messages.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
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

Json said(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

/// Whether the template renders the messages, and each of the texts is in the prompt.
bool shows(const ChatTemplate& chat, const Json& messages, std::initializer_list<std::string_view> texts) {
  const auto spans = chat.render(messages, nullptr, nullptr, false);
  if (!spans.ok()) return false;
  std::string prompt;
  for (const TextSpan& span : *spans) prompt += span.text;
  return std::all_of(texts.begin(), texts.end(),
                     [&](std::string_view text) { return prompt.find(text) != prompt.npos; });
}

/// Arguments that are a text, whatever the template asks of objects.
bool shows_text_arguments(const ChatTemplate& chat) {
  Json function = {{"name", "f"}, {"arguments", "{\"cut_here"}};
  Json call = {{"id", "1"}, {"type", "function"}, {"function", std::move(function)}};
  Json answer = said("assistant", "");
  answer["tool_calls"] = Json::array({std::move(call)});
  return shows(chat, Json::array({said("user", "question"), std::move(answer)}), {"cut_here"});
}

bool is_system(const Json& message) {
  const auto role = message.is_object() ? message.find("role") : message.end();
  return role != message.end() && *role == "system";
}

}  // namespace

PlainMessages::PlainMessages(const ChatTemplate* chat) {
  if (chat == nullptr) return;
  takes_text_arguments_ = shows_text_arguments(*chat);
  takes_systems_ = shows(
      *chat,
      Json::array({said("system", "first rule"), said("system", "second rule"), said("user", "question")}),
      {"first rule", "second rule"});
  takes_later_system_ = shows(*chat,
                              Json::array({said("user", "question"), said("assistant", "answer"),
                                           said("system", "later rule"), said("user", "another")}),
                              {"later rule"});
}

/// The contents are strings.
void PlainMessages::place_systems(Json& messages) const {
  std::size_t leading = 0;
  while (leading < messages.size() && is_system(messages[leading])) ++leading;
  if (!takes_later_system_) {
    for (std::size_t i = leading; i < messages.size(); ++i) {
      if (is_system(messages[i])) messages[i]["role"] = "user";
    }
  }
  if (takes_systems_ || leading < 2) return;
  std::string text;
  for (std::size_t i = 0; i < leading; ++i) {
    if (i > 0) text += '\n';
    text += messages[i]["content"].get_ref<const std::string&>();
  }
  auto& list = messages.get_ref<Json::array_t&>();
  list.erase(list.begin() + 1, list.begin() + static_cast<std::ptrdiff_t>(leading));
  messages[0]["content"] = std::move(text);
}

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
  place_systems(messages);
}

}  // namespace troupe
