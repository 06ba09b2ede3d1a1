#include "text/template/plain_messages.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

void erase_nulls(Json& value) {
  json::Members* members = json::object(value);
  if (members == nullptr) return;
  const auto is_null = [](const auto& member) { return member.second.is_null(); };
  if (std::none_of(members->begin(), members->end(), is_null)) return;
  json::Members kept;
  for (auto& [name, member] : *members) {
    if (!member.is_null()) kept.emplace_back(name, std::move(member));
  }
  members->swap(kept);
}

/// The texts of a list of parts, a line each. Parts of another kind have been refused before.
std::string joined_parts(const Json& parts) {
  std::string joined;
  for (const Json& part : json::items(parts)) {
    const std::string* text = json::text(json::member(part, "text"));
    if (text == nullptr) continue;
    if (!joined.empty()) joined += '\n';
    joined += *text;
  }
  return joined;
}

/// A refusal stands for the content that an answer does not have.
void make_content_text(Json& message) {
  Json* content = json::given(message, "content");
  if (content == nullptr) {
    const std::string* refusal = json::text(json::member(&message, "refusal"));
    json::put(message, "content", refusal != nullptr ? *refusal : std::string());
  } else if (content->is_array()) {
    *content = joined_parts(*content);
  } else if (json::text(*content) == nullptr) {
    *content = json::to_text(*content);
  }
}

void make_calls_plain(Json& message, bool takes_text) {
  Json* calls = json::member(message, "tool_calls");
  if (calls == nullptr) return;
  if (calls->empty()) return json::drop(message, "tool_calls");
  for (Json& call : json::items(*calls)) {
    erase_nulls(call);
    Json* function = json::member(call, "function");
    if (function == nullptr) continue;
    erase_nulls(*function);
    const Json* arguments = json::member(function, "arguments");
    const bool stays =
        arguments != nullptr && (arguments->is_object() || (takes_text && json::text(arguments) != nullptr));
    if (!stays) json::put(*function, "arguments", Json::object());
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

bool is_system(const Json& message) { return json::is(json::member(message, "role"), "system"); }

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

void PlainMessages::place_systems(Json& messages) const {
  Json placed = Json::array();
  bool leading = true;
  for (Json& message : json::items(messages)) {
    leading = leading && is_system(message);
    if (!leading && is_system(message) && !takes_later_system_) json::put(message, "role", "user");
    if (!leading || takes_systems_ || placed.empty()) {
      placed.push_back(std::move(message));
      continue;
    }
    std::string* rules = json::text(*json::member(placed.front(), "content"));
    const std::string* more = json::text(json::member(message, "content"));
    if (rules != nullptr && more != nullptr) *rules += "\n" + *more;
  }
  messages = std::move(placed);
}

void PlainMessages::apply(Json& messages) const {
  for (Json& message : json::items(messages)) {
    make_content_text(message);
    erase_nulls(message);
    const std::string* thoughts = json::text(json::member(&message, "reasoning"));
    if (thoughts != nullptr && !json::has(message, "reasoning_content")) {
      json::put(message, "reasoning_content", std::string(*thoughts));
    }
    make_calls_plain(message, takes_text_arguments_);
  }
  place_systems(messages);
}

}  // namespace troupe
