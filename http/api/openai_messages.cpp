// Conversations: messages and the arguments of the chat template. What a template may rely on is checked
// here: roles and kinds of content.
#include <algorithm>
#include <array>
#include <optional>

#include "http/api/media_parts.h"
#include "http/api/openai_fields.h"

namespace troupe::http {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};
constexpr JsonBounds kArgumentBounds{.depth = 32, .elements = 100'000};
constexpr std::size_t kMaxKwargs = 32;
constexpr std::size_t kMaxKwargsBytes = 16 << 10;
// Variables that the template engine sets itself; a client must not replace them.
constexpr std::array<std::string_view, 12> kReservedKwargs = {
    "tokenize", "messages",  "tools",     "documents", "chat_template",  "conversation",
    "padding",  "bos_token", "eos_token", "pad_token", "return_tensors", "return_dict"};

bool is_name(std::string_view text, std::size_t max_bytes, bool dash) {
  return !text.empty() && text.size() <= max_bytes && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (dash && c == '-');
  });
}

/// Reads the messages of a conversation. `media`: takes what images and videos hold; null: that has been
/// done.
class MessageReader {
 public:
  MessageReader(const ModelFacts& model, MediaParts* media) : model_(model), media_(media) {}

  Status read(Json& message, const std::string& path) const;

 private:
  Status check_part(Json& part, std::string_view role, const std::string& path) const;
  Status check_content(Json& message, std::string_view role, const std::string& path) const;

  const ModelFacts& model_;
  MediaParts* const media_;
};

// Checks one {type, …} part of a message's content and makes a refusal's text a text.
Status MessageReader::check_part(Json& part, std::string_view role, const std::string& path) const {
  const std::string* given = json::text(json::member(&part, "type"));
  if (given == nullptr) return invalid(path + " must be an object with a type", path, "invalid_value");
  const std::string& type = *given;
  if (media_ != nullptr && MediaParts::is_visual(type))
    return role == "assistant" ? media_->refuse(type, path) : media_->read(part, path);
  if (media_ != nullptr && MediaParts::is_foreign(type)) return media_->refuse(type, path);
  if (media_ == nullptr && (type == "image_url" || type == "video_url")) return {};
  if (const std::string* refusal = json::text(json::member(&part, "refusal"));
      refusal != nullptr && type == "refusal" && role == "assistant") {
    part = Json{{"type", "text"}, {"text", std::string(*refusal)}};
    return {};
  }
  if (type != "text") {
    const std::string kinds = model_.sees ? "\"text\", \"image_url\" or \"video_url\"" : "\"text\"";
    return invalid(path + ".type must be " + kinds + ", got \"" + cut(type) + "\"", path + ".type",
                   "invalid_value");
  }
  if (json::text(json::member(part, "text")) == nullptr) {
    return invalid(path + ".text must be a string", path + ".text", "invalid_value");
  }
  return {};
}

/// A member that is a string, when it is there and not null.
Status check_string(const Json& message, const char* name, const std::string& path) {
  const auto found = message.find(name);
  if (found == message.end() || found->is_null() || found->is_string()) return {};
  const std::string place = path + "." + name;
  return invalid(place + " must be a string, got " + excerpt(*found), place, "invalid_type");
}

Status MessageReader::check_content(Json& message, std::string_view role, const std::string& path) const {
  const std::string content_path = path + ".content";
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) {
    if (role == "assistant") return {};  // tool calls only, or an empty turn
    return invalid(content_path + " is missing", content_path, "missing_required_parameter");
  }
  if (found->is_string()) return {};
  if (found->is_object() && role == "tool") return {};
  if (!found->is_array()) {
    return invalid(content_path + " must be a string or a list of parts, got " + excerpt(*found),
                   content_path, "invalid_value");
  }
  std::size_t i = 0;
  for (Json& part : json::items(*found)) {
    Status status = check_part(part, role, content_path + "." + std::to_string(i++));
    if (!status.ok()) return status;
  }
  return {};
}

// Checks a call's function and parses its arguments.
Status read_function(Json& function, const std::string& place) {
  if (!function.is_object()) {
    return invalid(place + " must be an object with name and arguments", place, "invalid_value");
  }
  if (json::text(json::member(function, "name")) == nullptr) {
    return invalid(place + ".name must be a string", place + ".name", "invalid_value");
  }
  return read_arguments(function, place);
}

Status read_tool_calls(Json& calls, const std::string& path) {
  if (!calls.is_array()) return invalid(path + " must be a list", path, "invalid_value");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string place = path + "." + std::to_string(i) + ".function";
    Json* function = json::member(calls[i], "function");
    if (function == nullptr || !function->is_object()) {
      return invalid(place + " must be an object with name and arguments", place, "invalid_value");
    }
    if (Status status = read_function(*function, place); !status.ok()) return status;
  }
  return {};
}

// The older form of a conversation with calls: function_call of an assistant, and its answer with the role
// function. Templates know tool_calls and the role tool.
Status modernize(Json& message, std::string& role, const std::string& path) {
  if (role == "function") {
    message["role"] = role = "tool";
    if (!message.contains("tool_call_id")) message["tool_call_id"] = "";
  }
  const auto call = message.find("function_call");
  if (call == message.end() || call->is_null()) return {};
  const std::string place = path + ".function_call";
  if (role != "assistant" || json::given(message, "tool_calls") != nullptr) {
    return invalid(place + " is only allowed in assistant messages without tool_calls", place,
                   "invalid_value");
  }
  if (Status status = read_function(*call, place); !status.ok()) return status;
  Json calls = Json::array({{{"type", "function"}, {"function", std::move(*call)}}});
  message.erase("function_call");
  message["tool_calls"] = std::move(calls);
  return {};
}

Status MessageReader::read(Json& message, const std::string& path) const {
  if (!message.is_object()) {
    return invalid(path + " must be an object with role and content, got " + excerpt(message), path,
                   "invalid_value");
  }
  const Json* given = json::member(message, "role");
  const std::string* role = json::text(given);
  if (role == nullptr || std::find(kRoles.begin(), kRoles.end(), *role) == kRoles.end()) {
    const std::string got = given == nullptr ? "nothing" : excerpt(*given);
    return invalid(
        path + ".role must be one of system, developer, user, assistant, tool, function, got " + got,
        path + ".role", "invalid_value");
  }
  std::string name = *role;
  if (Status status = modernize(message, name, path); !status.ok()) return status;
  if (name == "developer")
    message["role"] = "system";  // the newer name of the same role, which templates do not know
  Status status = check_content(message, name, path);
  if (!status.ok()) return status;
  for (const char* text : {"name", "reasoning_content", "reasoning", "refusal"}) {
    if (status = check_string(message, text, path); !status.ok()) return status;
  }
  if (name == "tool" && json::text(json::member(&message, "tool_call_id")) == nullptr) {
    return invalid(path + ".tool_call_id must name the call that this message answers",
                   path + ".tool_call_id", "invalid_value");
  }
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return {};
  if (name != "assistant") {
    return invalid(path + ".tool_calls is only allowed in assistant messages", path + ".tool_calls",
                   "invalid_value");
  }
  return read_tool_calls(*calls, path + ".tool_calls");
}

Json read_messages(Fields& fields, const RequestRules& rules, bool required, const MessageReader& reader) {
  Json* value = fields.find("messages");
  if (value == nullptr) {
    if (required) fields.fail("messages", "is missing", "missing_required_parameter");
    return {};
  }
  if (!value->is_array()) {
    fields.fail("messages", "must be a list of messages, got " + excerpt(*value), "invalid_type");
    return {};
  }
  if (value->empty()) {
    fields.fail("messages", "must hold at least one message", "empty_array");
    return {};
  }
  if (value->size() > static_cast<std::size_t>(rules.limits.max_messages)) {
    fields.fail("messages",
                "may hold at most " + std::to_string(rules.limits.max_messages) + " messages, got " +
                    std::to_string(value->size()),
                "too_many_elements");
    return {};
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    Status status = reader.read((*value)[i], fields.path("messages." + std::to_string(i)));
    if (!status.ok()) {
      fields.fail(std::move(status));
      return {};
    }
  }
  return std::move(*value);
}

// null when there are none.
Json read_template_kwargs(Fields& fields) {
  Json* given = fields.find("chat_template_kwargs");
  const Json* metadata = fields.find("metadata");
  if (metadata != nullptr && !metadata->is_object()) {
    fields.fail("metadata", "must be an object, got " + excerpt(*metadata), "invalid_type");
    return {};
  }
  if (given != nullptr && !given->is_object()) {
    fields.fail("chat_template_kwargs", "must be an object, got " + excerpt(*given), "invalid_value");
    return {};
  }
  Json kwargs = given != nullptr ? std::move(*given) : Json::object();
  if (kwargs.size() > kMaxKwargs) {
    fields.fail("chat_template_kwargs", "may hold at most " + std::to_string(kMaxKwargs) + " entries",
                "invalid_value");
    return {};
  }
  for (const auto& [key, value] : json::members(kwargs)) {
    const bool reserved =
        std::find(kReservedKwargs.begin(), kReservedKwargs.end(), key) != kReservedKwargs.end();
    if (reserved || !is_name(key, 64, false) || (key[0] >= '0' && key[0] <= '9')) {
      fields.fail("chat_template_kwargs", "may not set \"" + cut(key) + "\"", "invalid_value");
      return {};
    }
  }
  const Json* thinking = fields.find("enable_thinking");
  if (thinking == nullptr) thinking = json::member(metadata, "enable_thinking");
  if (thinking != nullptr && !kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = *thinking;
  if (kwargs.empty()) return {};
  if (to_text(kwargs).size() > kMaxKwargsBytes) {
    fields.fail("chat_template_kwargs", "may take at most " + std::to_string(kMaxKwargsBytes) + " bytes",
                "invalid_value");
    return {};
  }
  return kwargs;
}

}  // namespace

Status read_arguments(Json& call, const std::string& path) {
  const auto arguments = call.find("arguments");
  if (arguments == call.end() || arguments->is_object() || arguments->is_null()) return {};
  const auto fail = [&] {
    return invalid(
        path + ".arguments must be a JSON object, or a string that holds one, got " + excerpt(*arguments),
        path + ".arguments", "invalid_value");
  };
  const std::string* text = json::text(*arguments);
  if (text == nullptr) return fail();
  if (text->empty()) {  // what a function without parameters is often called with
    *arguments = Json::object();
    return {};
  }
  auto parsed = parse_json(*text, kArgumentBounds);
  if (parsed.ok() && parsed->is_object()) {
    *arguments = std::move(*parsed);
    return {};
  }
  // What a model wrote as an object, and was cut or wrote wrongly, is given back to it as it was told.
  const std::size_t first = text->find_first_not_of(" \t\r\n");
  return !parsed.ok() && first != text->npos && (*text)[first] == '{' ? Status() : fail();
}

void read_conversation(Fields& fields, const RequestRules& rules, bool required, ToolRules& tool_rules,
                       MediaParts* media, Source& source) {
  std::optional<MediaParts> own;
  if (media == nullptr) own.emplace(fields, rules.model);
  Conversation& conversation = source.conversation;
  conversation.messages =
      read_messages(fields, rules, required, MessageReader(rules.model, own ? &*own : nullptr));
  source.media = (own ? *own : *media).take(fields);
  conversation.tools = read_tools(fields, rules, tool_rules);
  conversation.template_kwargs = read_template_kwargs(fields);
  conversation.add_generation_prompt = fields.boolean("add_generation_prompt", true);
}

}  // namespace troupe::http
