#include "http/api/chat_body.h"

#include <algorithm>

#include "http/api/client_policy.h"
#include "http/api/request_fields.h"

namespace troupe::http {
namespace {

bool is_listed(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string quoted(std::span<const std::string_view> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out.append("\"").append(names[i]).append("\"");
  }
  return out;
}

// "tools.3.function.parameters.x" → "tools.3.input_schema.x"; empty for what is no path into a tool.
std::string tool_path(std::string_view path, std::string_view schema) {
  constexpr std::string_view kTools = "tools.", kFunction = ".function", kParameters = ".parameters";
  if (!path.starts_with(kTools)) return {};
  const std::size_t at = path.find('.', kTools.size());
  if (at == path.npos || path.substr(at, kFunction.size()) != kFunction) return {};
  std::string_view rest = path.substr(at + kFunction.size());
  std::string out(path.substr(0, at));
  if (rest.starts_with(kParameters)) {
    out.append(".").append(schema);
    rest.remove_prefix(kParameters.size());
  }
  return out.append(rest);
}

}  // namespace

std::string Wording::path(std::string_view chat_path) const {
  if (std::string path = tool_path(chat_path, tool_schema); !path.empty()) return path;
  for (const FieldOrigin& field : fields) {
    const std::string_view rest = chat_path.substr(std::min(field.chat.size(), chat_path.size()));
    if (!chat_path.starts_with(field.chat) || !(rest.empty() || rest.front() == '.')) continue;
    return std::string(field.own).append(rest);
  }
  return std::string(chat_path);
}

Status Wording::status(Status status) const {
  std::string own = path(status.param);
  if (status.message.starts_with(status.param)) status.message.replace(0, status.param.size(), own);
  status.param = std::move(own);
  return status;
}

void move_shared(Json& own, Json& chat) {
  for (const RequestField& field : request_fields()) {
    if (is_shared(field)) move_member(own, field.name, chat, std::string(field.name).c_str());
  }
}

void move_member(Json& own, std::string_view from, Json& chat, const char* to) {
  if (Json* value = member_of(own, from)) chat[to] = std::move(*value);
}

Status missing_field(const std::string& path) {
  return invalid(path + " is missing", path, "missing_required_parameter");
}

Status not_offered(const std::string& field, const std::string& why) {
  return {Code::unsupported, field + " " + why, field, "unsupported_parameter"};
}

void read_effort(Fields& own, Json& chat) {
  const auto effort = own.string("reasoning_effort");
  if (!effort) return;
  if (!effort_of(*effort)) {
    own.fail("reasoning_effort", "must be " + std::string(kEfforts) + ", got \"" + cut(*effort) + "\"",
             "invalid_value");
  }
  if (!chat.contains("reasoning_effort")) chat["reasoning_effort"] = *effort;
}

void check_one_answer(Fields& own) {
  if (const Json* n = own.find("n"); n != nullptr && n->is_number_integer() && *n != 1) {
    own.fail("n",
             "must be 1, since a response is one answer, got " + excerpt(*n) +
                 ": send several requests, or use /v1/chat/completions",
             "out_of_range");
  }
  own.integer("n", 1, 1);
}

Result<Json> read_content_part(Json& part, const std::string& path,
                               std::span<const std::string_view> text_types, ContentKind kind,
                               MediaParts& media) {
  const std::string* type = json::text(json::member(&part, "type"));
  if (type == nullptr) {
    return invalid(path + " must be an object with a type, got " + excerpt(part), path, "invalid_value");
  }
  const std::string name = *type;
  if (kind == ContentKind::visual && MediaParts::is_visual(name)) {
    if (Status status = media.read(part, path); !status.ok()) return status;
    return std::move(part);
  }
  if (MediaParts::is_visual(name) || MediaParts::is_foreign(name)) return media.refuse(name, path);
  if (!is_listed(text_types, name)) {
    return invalid(path + ".type must be " + quoted(text_types) + ", got \"" + cut(name) + "\"",
                   path + ".type", "invalid_value");
  }
  const std::string field = name == "refusal" ? "refusal" : "text";
  Json* member = member_of(part, field);
  std::string* text = member != nullptr ? json::text(*member) : nullptr;
  if (text == nullptr) {
    return invalid(path + "." + field + " must be a string", path + "." + field, "invalid_value");
  }
  return Json{{"type", "text"}, {"text", std::move(*text)}};
}

Json as_content(Json parts) {
  if (parts.empty()) return Json("");
  Json* const text = json::member(parts.front(), "text");
  if (parts.size() == 1 && text != nullptr) return std::move(*text);
  return parts;
}

Result<Json> read_content(Json& content, const std::string& path,
                          std::span<const std::string_view> text_types, ContentKind kind, MediaParts& media) {
  if (content.is_string()) return std::move(content);
  if (!content.is_array()) {
    return invalid(path + " must be a string or a list of parts, got " + excerpt(content), path,
                   "invalid_value");
  }
  Json parts = Json::array();
  std::size_t i = 0;
  for (Json& part : json::items(content)) {
    auto one = read_content_part(part, path + "." + std::to_string(i++), text_types, kind, media);
    if (!one.ok()) return one.status();
    parts.push_back(*std::move(one));
  }
  return as_content(std::move(parts));
}

void MessageList::add(std::string_view role, Json content) {
  messages_.push_back({{"role", role}, {"content", std::move(content)}});
}

Json& MessageList::turn(std::initializer_list<const char*> taken) {
  const Json* last = messages_.empty() ? nullptr : &messages_.back();
  const bool continues = json::is(json::member(last, "role"), "assistant") &&
                         std::none_of(taken.begin(), taken.end(), [&](const char* name) {
                           const Json* member = json::member(last, name);
                           return member != nullptr && !json::is(member, "");
                         });
  if (!continues) messages_.push_back({{"role", "assistant"}, {"content", ""}});
  return messages_.back();
}

void MessageList::add_thoughts(std::string text) {
  turn({"reasoning_content", "content", "tool_calls"})["reasoning_content"] = std::move(text);
}

void MessageList::add_assistant_text(Json content) {
  if (messages_.empty() || !json::has(messages_.back(), "tool_calls")) {
    json::put(turn({"content"}), "content", std::move(content));
    return;
  }
  Json& message = messages_.back();
  Json* before = json::given(message, "content");
  if (before == nullptr) before = &json::put(message, "content", "");
  std::string* text = json::text(*before);
  if (const std::string* more = json::text(content); text != nullptr && more != nullptr) {
    *text += *more;
    return;
  }
  Json parts = Json::array();
  for (Json* some : {before, &content}) {
    if (const std::string* whole = json::text(*some)) parts.push_back({{"type", "text"}, {"text", *whole}});
    for (Json& part : json::items(*some)) parts.push_back(std::move(part));
  }
  *before = std::move(parts);
}

void MessageList::add_call(std::string id, std::string name, Json arguments) {
  Json& message = turn({});
  Json* calls = json::given(message, "tool_calls");
  if (calls == nullptr) calls = &json::put(message, "tool_calls", Json::array());
  Json function = {{"name", std::move(name)}, {"arguments", std::move(arguments)}};
  calls->push_back({{"id", std::move(id)}, {"type", "function"}, {"function", std::move(function)}});
}

void MessageList::add_result(std::string call_id, Json content) {
  messages_.push_back(
      {{"role", "tool"}, {"tool_call_id", std::move(call_id)}, {"content", std::move(content)}});
}

}  // namespace troupe::http
