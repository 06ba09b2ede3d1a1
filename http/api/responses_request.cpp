#include "http/api/responses_request.h"

#include <algorithm>

#include "http/api/chat_body.h"
#include "http/api/client_policy.h"
#include "http/api/request_fields.h"
#include "http/api/responses_input.h"

namespace troupe::http {
namespace {

constexpr FieldOrigin kResponsesOrigins[] = {
    {"messages", "input"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
};
constexpr Wording kResponsesWording{kResponsesOrigins, "parameters"};

constexpr std::size_t kMaxMetadata = 16;

/// {type: "function", name, …} → {type: "function", function: {name, …}}; the rest is checked as in chat, or
/// left out.
void read_flat_tools(Fields& own, Json& chat) {
  Json* tools = own.find("tools");
  if (tools == nullptr) return;
  if (tools->is_array()) {
    for (std::size_t i = 0; i < tools->size(); ++i) {
      Json& tool = (*tools)[i];
      if (!tool.is_object() || is_left_out_tool(tool, "function")) continue;
      const Json* type = member_of(tool, "type");
      Json wrapped = {{"type", type != nullptr ? *type : Json()}};
      tool.erase("type");
      wrapped["function"] = std::move(tool);
      tool = std::move(wrapped);
    }
  }
  chat["tools"] = std::move(*tools);
}

/// {type: "function", name} → {type: "function", function: {name}}; words stay.
void read_flat_choice(Fields& own, Json& chat) {
  Json* choice = own.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    const Json* type = member_of(*choice, "type");
    Json* name = member_of(*choice, "name");
    if (type == nullptr || *type != "function" || name == nullptr || !name->is_string()) {
      own.fail("tool_choice",
               "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …}" +
                   (type == nullptr ? std::string() : ", got one of type " + excerpt(*type)),
               "invalid_value");
      return;
    }
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", std::move(*name)}}}};
    return;
  }
  if (*choice != "none" && *choice != "auto" && *choice != "required") {
    own.fail("tool_choice",
             "must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …}, got " +
                 excerpt(*choice),
             "invalid_value");
    return;
  }
  chat["tool_choice"] = std::move(*choice);
}

/// An object field of the request; null when it is absent or no object, which is a failure.
Json* object_field(Fields& own, std::string_view name) {
  Json* value = own.find(name);
  if (value == nullptr || value->is_object()) return value;
  own.fail(name, "must be an object, got " + excerpt(*value), "invalid_type");
  return nullptr;
}

/// text.format → response_format.
void read_text_format(Fields& own, Json& chat) {
  Json* text = object_field(own, "text");
  Json* format = text != nullptr ? member_of(*text, "format") : nullptr;
  if (format == nullptr) return;
  Json* type = format->is_object() ? member_of(*format, "type") : nullptr;
  if (type == nullptr || (*type != "text" && *type != "json_object" && *type != "json_schema")) {
    own.fail("text.format",
             "must be an object of type text, json_object or json_schema, got " +
                 excerpt(type != nullptr ? *type : *format),
             "invalid_value");
    return;
  }
  if (*type != "json_schema") {
    chat["response_format"] = {{"type", std::move(*type)}};
    return;
  }
  format->erase("type");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(*format)}};
}

void check_own_fields(Fields& own) {
  apply_policies(own, kResponsesApi);
  check_one_answer(own);
  own.boolean("store");  // true is accepted: the answer says false
  if (own.integer("top_logprobs", 0, 20).value_or(0) > 0) {
    own.fail(
        not_offered("top_logprobs", "is not offered here; /v1/chat/completions gives log-probabilities"));
  }
  if (const Json* include = own.find("include")) {
    const bool list = include->is_array();
    if (!list) own.fail("include", "must be a list of strings, got " + excerpt(*include), "invalid_type");
    if (list &&
        std::find(include->begin(), include->end(), "message.output_text.logprobs") != include->end()) {
      own.fail(not_offered(
          "include",
          "of message.output_text.logprobs is not offered; /v1/chat/completions gives log-probabilities"));
    }
  }
  if (const Json* metadata = object_field(own, "metadata")) {
    if (metadata->size() > kMaxMetadata) {
      own.fail("metadata",
               "may hold at most " + std::to_string(kMaxMetadata) + " entries, got " +
                   std::to_string(metadata->size()),
               "too_many_elements");
    }
    for (const auto& [key, value] : json::members(*metadata)) {
      if (!value.is_string())
        own.fail("metadata." + cut(key), "must be a string, got " + excerpt(value), "invalid_type");
    }
  }
}

/// The members of the answer that repeat the request.
std::string settings_of(Json& body) {
  const auto given = [&](Json& object, std::string_view name, Json otherwise) {
    const Json* value = object.is_object() ? member_of(object, name) : nullptr;
    return value != nullptr ? *value : otherwise;
  };
  Json reasoning = given(body, "reasoning", Json::object());
  Json text = given(body, "text", Json::object());
  Json echo = Json::object();
  echo["background"] = false;
  echo["instructions"] = given(body, "instructions", nullptr);
  echo["max_output_tokens"] = given(body, "max_output_tokens", nullptr);
  echo["max_tool_calls"] = given(body, "max_tool_calls", nullptr);
  echo["metadata"] = given(body, "metadata", Json::object());
  echo["parallel_tool_calls"] = given(body, "parallel_tool_calls", true);
  echo["previous_response_id"] = nullptr;
  echo["prompt_cache_key"] = given(body, "prompt_cache_key", nullptr);
  echo["reasoning"] = {{"effort", given(reasoning, "effort", nullptr)}, {"summary", nullptr}};
  echo["safety_identifier"] = given(body, "safety_identifier", nullptr);
  echo["service_tier"] = "default";
  echo["store"] = false;
  echo["text"] = {{"format", given(text, "format", {{"type", "text"}})},
                  {"verbosity", given(text, "verbosity", "medium")}};
  echo["tool_choice"] = given(body, "tool_choice", "auto");
  echo["tools"] = given(body, "tools", Json::array());
  echo["top_logprobs"] = 0;
  echo["truncation"] = "disabled";
  echo["user"] = given(body, "user", nullptr);
  std::string members = to_text(echo);
  return members.substr(1, members.size() - 2);
}

/// The body as one of /v1/chat/completions. `own` keeps the first failure.
Json responses_to_chat(Fields& own, Json& body, const config::LimitOptions& limits, MediaParts& media) {
  Json chat = Json::object();
  check_own_fields(own);
  move_shared(body, chat);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto most = own.integer(name, 1, kMaxInteger)) chat["max_completion_tokens"] = *most;
  }
  move_member(body, "max_output_tokens", chat, "max_completion_tokens");
  move_member(body, "prompt_cache_key", chat, "prompt_cache_key");
  move_member(body, "thinking_token_budget", chat, "thinking_token_budget");
  if (Json* reasoning = object_field(own, "reasoning"))
    move_member(*reasoning, "effort", chat, "reasoning_effort");
  read_effort(own, chat);
  read_flat_tools(own, chat);
  read_flat_choice(own, chat);
  read_text_format(own, chat);
  chat["messages"] = read_response_input(own, limits, media);
  return chat;
}

}  // namespace

Result<Parsed> parse_responses(std::string_view body, const RequestRules& rules) {
  auto root = parse_object(body, rules.limits);
  if (!root.ok()) return root.status();
  Parsed parsed{new_request(Api::responses, rules), {}};
  parsed.request.answer.settings = settings_of(*root);
  Fields own(*root);
  MediaParts media(own, rules.model);
  Json body_of_chat = responses_to_chat(own, *root, rules.limits, media);
  if (!own.ok()) return own.status();
  Fields fields(body_of_chat);
  ChatRules chat;
  read_chat(fields, rules, "resp_", &media, parsed.request, chat);
  if (!fields.ok()) return kResponsesWording.status(fields.status());
  for (const std::string& path : fields.left_out()) own.leave_out(kResponsesWording.path(path));
  auto ignored = ignored_fields(*root, kResponsesApi, rules.limits.strict_requests, own.left_out());
  if (!ignored.ok()) return ignored.status();
  parsed.ignored_fields = *std::move(ignored);
  AnswerForm& form = parsed.request.generation.form;
  form.param = kResponsesWording.path(form.param);
  chat.tools.schema_field = kResponsesWording.tool_schema;
  return settle_chat(std::move(parsed), chat, rules);
}

}  // namespace troupe::http
