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

bool is_item(const Json& part) {
  const Json* type = json::member(part, "type");
  return json::is(type, "image_url") || json::is(type, "video_url");
}

bool has_items(const Json& content) {
  const auto parts = json::items(content);
  return std::any_of(parts.begin(), parts.end(), is_item);
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

bool is_role(const Json& message, std::string_view role) {
  return json::is(json::member(message, "role"), role);
}

bool is_of_tool(const Json& message) { return is_role(message, "tool") || is_role(message, "function"); }

bool is_system(const Json& message) { return is_role(message, "system"); }

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

/// An item as every template can read it: some ask for the type, others for a member, and read its url.
Json item_part(const std::string& type, const char* member, const char* short_member) {
  return {{"type", type}, {member, {{"url", ""}}}, {short_member, ""}};
}

Json image_part(const std::string& type) { return item_part(type, "image_url", "image"); }
Json video_part(const std::string& type) { return item_part(type, "video_url", "video"); }

Json said_parts(const char* role, Json part) {
  return {{"role", role}, {"content", Json::array({std::move(part), text_part("question")})}};
}

/// Whether the template writes one mark, of this kind, for these messages.
bool marks_one(const ChatTemplate& chat, const MediaMarks& marks, MediaKind kind, const Json& messages) {
  const auto spans = chat.render(messages, nullptr, nullptr, true);
  if (!spans.ok()) return false;
  const std::vector<MediaMark> found = marks.find(*spans);
  return found.size() == 1 && found.front().kind == kind;
}

}  // namespace

PlainMessages::PlainMessages(const ChatTemplate* chat, const MediaMarks* marks) {
  if (chat == nullptr) return;
  if (marks != nullptr) learn_parts(*chat, *marks);
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

void PlainMessages::learn_parts(const ChatTemplate& chat, const MediaMarks& marks) {
  for (const char* type : {"image", "image_url"}) {
    if (marks_one(chat, marks, MediaKind::image, Json::array({said_parts("user", image_part(type))}))) {
      image_type_ = type;
    }
  }
  for (const char* type : {"video", "video_url"}) {
    if (marks_one(chat, marks, MediaKind::video, Json::array({said_parts("user", video_part(type))}))) {
      video_type_ = type;
    }
  }
  if (image_type_.empty()) return;
  Json call = {
      {"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
  Json asked = said("assistant", "");
  asked["tool_calls"] = Json::array({std::move(call)});
  Json answered = said_parts("tool", image_part(image_type_));
  answered["tool_call_id"] = "1";
  takes_items_of_tools_ =
      marks_one(chat, marks, MediaKind::image,
                Json::array({said("user", "question"), std::move(asked), std::move(answered)}));
  Json in_parts = {{"role", "user"}, {"content", Json::array({text_part("question")})}};
  takes_parts_alone_ = !shows(chat, Json::array({said("user", "question")}), {"question"}) &&
                       shows(chat, Json::array({std::move(in_parts)}), {"question"});
}

Json PlainMessages::spelled(const Json& part) const {
  const Json* type = json::member(part, "type");
  if (json::is(type, "image_url")) return image_part(image_type_.empty() ? "image_url" : image_type_);
  if (json::is(type, "video_url")) return video_part(video_type_.empty() ? "video_url" : video_type_);
  const std::string* text = json::text(json::member(part, "text"));
  return text_part(text == nullptr ? std::string() : *text);
}

void PlainMessages::make_content(Json& message) const {
  Json* content = json::given(message, "content");
  const bool sees = !image_type_.empty() || !video_type_.empty();
  const bool stays_list = content != nullptr && content->is_array() && sees &&
                          (has_items(*content) || (is_role(message, "user") && !content->empty()));
  if (!stays_list) return make_content_text(message);
  for (Json& part : json::items(*content)) part = spelled(part);
}

void PlainMessages::move_items_of_tools(Json& messages) const {
  const auto to_move = [](const Json& message) {
    const Json* content = json::member(message, "content");
    return is_of_tool(message) && content != nullptr && has_items(*content);
  };
  const auto all = json::items(std::as_const(messages));
  if (std::none_of(all.begin(), all.end(), to_move)) return;
  Json placed = Json::array();
  Json moved = Json::array();  // items of the answers of tools that stand together
  const auto put_moved = [&] {
    if (moved.empty()) return;
    placed.push_back({{"role", "user"}, {"content", std::exchange(moved, Json::array())}});
  };
  for (Json& message : json::items(messages)) {
    if (!is_of_tool(message)) put_moved();
    if (to_move(message)) {
      Json* content = json::member(message, "content");
      Json rest = joined_parts(*content);
      for (Json& part : json::items(*content)) {
        if (is_item(part)) moved.push_back(std::move(part));
      }
      *content = std::move(rest);
    }
    placed.push_back(std::move(message));
  }
  put_moved();
  messages = std::move(placed);
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
  if (!image_type_.empty() && !takes_items_of_tools_) move_items_of_tools(messages);
  for (Json& message : json::items(messages)) {
    make_content(message);
    erase_nulls(message);
    const std::string* thoughts = json::text(json::member(&message, "reasoning"));
    if (thoughts != nullptr && !json::has(message, "reasoning_content")) {
      json::put(message, "reasoning_content", std::string(*thoughts));
    }
    make_calls_plain(message, takes_text_arguments_);
  }
  place_systems(messages);
  if (!takes_parts_alone_) return;
  for (Json& message : json::items(messages)) {
    std::string* text = json::text(*json::member(message, "content"));
    if (text != nullptr) json::put(message, "content", Json::array({text_part(std::move(*text))}));
  }
}

}  // namespace troupe
