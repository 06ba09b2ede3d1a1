#include "http/api/messages_request.h"

#include <algorithm>

#include "http/api/chat_body.h"
#include "http/api/client_policy.h"
#include "http/api/messages_turns.h"
#include "http/api/request_fields.h"

namespace troupe::http {
namespace {

constexpr FieldOrigin kMessagesOrigins[] = {
    {"max_completion_tokens", "max_tokens"},
    {"stop", "stop_sequences"},
    {"thinking_token_budget", "thinking.budget_tokens"},
    {"reasoning_effort", "output_config.effort"},
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
};
constexpr Wording kMessagesWording{kMessagesOrigins, "input_schema"};

/// {name, description, input_schema} → {type: "function", function: {name, description, parameters}}. Tools
/// of other types, whose schemas Anthropic knows, stay as they are and are left out with the checks of chat.
void read_custom_tools(Fields& own, Json& chat) {
  Json* tools = own.find("tools");
  if (tools == nullptr) return;
  if (tools->is_array()) {
    for (std::size_t i = 0; i < tools->size(); ++i) {
      Json& tool = (*tools)[i];
      if (!tool.is_object() || is_left_out_tool(tool, "custom")) continue;
      const std::string path = "tools." + std::to_string(i);
      if (const Json* type = member_of(tool, "type"); type != nullptr && !type->is_string()) {
        own.fail(path + ".type", "must be a string, got " + excerpt(*type), "invalid_type");
        return;
      }
      if (member_of(tool, "input_schema") == nullptr) {
        own.fail(missing_field(path + ".input_schema"));
        return;
      }
      Json function = Json::object();
      for (const char* name : {"name", "description", "strict"}) move_member(tool, name, function, name);
      move_member(tool, "input_schema", function, "parameters");
      tool = {{"type", "function"}, {"function", std::move(function)}};
    }
  }
  chat["tools"] = std::move(*tools);
}

void read_custom_choice(Fields& own, Json& chat) {
  Json* choice = own.find("tool_choice");
  if (choice == nullptr) return;
  Json* type = choice->is_object() ? member_of(*choice, "type") : nullptr;
  const auto is = [&](std::string_view name) { return type != nullptr && *type == name; };
  Json* name = choice->is_object() ? member_of(*choice, "name") : nullptr;
  if (is("auto") || is("none")) {
    chat["tool_choice"] = *type;
  } else if (is("any")) {
    chat["tool_choice"] = "required";
  } else if (is("tool") && name != nullptr && name->is_string()) {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", std::move(*name)}}}};
  } else {
    own.fail("tool_choice",
             "must be an object of type auto, any, none, or tool with a name, got " +
                 (type != nullptr ? "one of type " + excerpt(*type) : excerpt(*choice)),
             "invalid_value");
    return;
  }
  Fields fields(*choice, "tool_choice");
  if (fields.boolean("disable_parallel_tool_use")) chat["parallel_tool_calls"] = false;
  own.fail(fields.status());
}

/// thinking → the switch of the template, and the budget.
void read_thinking_config(Fields& own, std::optional<std::int64_t> max_tokens, Json& chat) {
  Json* thinking = own.find("thinking");
  if (thinking == nullptr) return;
  const Json* type = thinking->is_object() ? member_of(*thinking, "type") : nullptr;
  if (type == nullptr || (*type != "enabled" && *type != "disabled" && *type != "adaptive")) {
    own.fail("thinking",
             "must be an object of type enabled, disabled or adaptive, got " +
                 excerpt(type != nullptr ? *type : *thinking),
             "invalid_value");
    return;
  }
  if (*type == "disabled") {
    chat["reasoning_effort"] = "none";
    return;
  }
  if (*type == "adaptive") return;
  Fields fields(*thinking, "thinking");
  const auto budget = fields.integer("budget_tokens", 1, kMaxInteger);
  if (fields.ok() && !budget) fields.fail(missing_field("thinking.budget_tokens"));
  if (budget && max_tokens && *budget >= *max_tokens) {
    fields.fail(
        "budget_tokens",
        "must be less than max_tokens (" + std::to_string(*max_tokens) + "), got " + std::to_string(*budget),
        "out_of_range");
  }
  if (budget) chat["thinking_token_budget"] = *budget;
  own.fail(fields.status());
}

/// output_config: the effort and the form of the answer.
void read_output_config(Fields& own, Json& chat) {
  Json* config = own.find("output_config");
  if (config == nullptr) return;
  if (!config->is_object()) {
    own.fail("output_config", "must be an object, got " + excerpt(*config), "invalid_type");
    return;
  }
  if (!chat.contains("reasoning_effort")) move_member(*config, "effort", chat, "reasoning_effort");
  Json* format = member_of(*config, "format");
  if (format == nullptr) return;
  const Json* type = format->is_object() ? member_of(*format, "type") : nullptr;
  if (type == nullptr || *type != "json_schema") {
    own.fail("output_config.format",
             "must be an object of type json_schema, got " + excerpt(type != nullptr ? *type : *format),
             "invalid_value");
    return;
  }
  format->erase("type");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(*format)}};
}

/// The body as one of /v1/chat/completions. `own` keeps the first failure.
Json messages_to_chat(Fields& own, Json& body, const config::LimitOptions& limits, bool answered,
                      MediaParts& media) {
  Json chat = Json::object();
  apply_policies(own, answered ? kMessagesApi : kCountTokensApi);
  if (answered) check_one_answer(own);
  move_shared(body, chat);
  const auto max_tokens = own.integer("max_tokens", 1, kMaxInteger);
  if (answered && own.ok() && !max_tokens) own.fail(missing_field("max_tokens"));
  if (max_tokens) chat["max_completion_tokens"] = *max_tokens;
  // Agents name a conversation there.
  if (Json* metadata = answered ? member_of(body, "metadata") : nullptr;
      metadata != nullptr && metadata->is_object()) {
    if (const std::string* user = json::text(member_of(*metadata, "user_id")))
      chat["prompt_cache_key"] = *user;
  }
  if (const Json* stop = own.find("stop_sequences"); stop != nullptr && !stop->is_array()) {
    own.fail("stop_sequences", "must be a list of strings, got " + excerpt(*stop), "invalid_type");
  }
  move_member(body, "stop_sequences", chat, "stop");
  read_custom_tools(own, chat);
  read_custom_choice(own, chat);
  read_thinking_config(own, max_tokens, chat);
  read_output_config(own, chat);
  read_effort(own, chat);
  chat["messages"] = read_turns(own, limits, answered, media);
  return chat;
}

template <class Read>
Result<Parsed> parse_blocks(std::string_view body, const RequestRules& rules, Api api, Read read) {
  auto root = parse_object(body, rules.limits);
  if (!root.ok()) return root.status();
  Parsed parsed{new_request(api, rules), {}};
  Fields own(*root);
  MediaParts media(own, rules.model);
  Json chat = messages_to_chat(own, *root, rules.limits, generates(api), media);
  if (!own.ok()) return own.status();
  Fields fields(chat);
  read(fields, media, parsed.request);
  if (!fields.ok()) return kMessagesWording.status(fields.status());
  for (const std::string& path : fields.left_out()) own.leave_out(kMessagesWording.path(path));
  auto ignored = ignored_fields(*root, bit(api), rules.limits.strict_requests, own.left_out());
  if (!ignored.ok()) return ignored.status();
  parsed.ignored_fields = *std::move(ignored);
  return parsed;
}

}  // namespace

Result<Parsed> parse_messages(std::string_view body, const RequestRules& rules) {
  ChatRules chat;
  auto parsed =
      parse_blocks(body, rules, Api::messages, [&](Fields& fields, MediaParts& media, Request& request) {
        read_chat(fields, rules, "msg_", &media, request, chat);
        if (fields.find("thinking_token_budget") != nullptr)
          chat.thinking.max_tokens_field = "thinking.budget_tokens";
        request.generation.form.param = kMessagesWording.path(request.generation.form.param);
        chat.tools.schema_field = kMessagesWording.tool_schema;
      });
  return settle_chat(std::move(parsed), chat, rules);
}

Result<Parsed> parse_count_tokens(std::string_view body, const RequestRules& rules) {
  return parse_blocks(
      body, rules, Api::count_tokens, [&](Fields& fields, MediaParts& media, Request& request) {
        ToolRules tools;
        request.answer.model = read_model(fields, rules);
        read_conversation(fields, rules, true, tools, &media, request.source);
        switch_thinking(rules.model, read_thinking(fields).effort, request.source.conversation);
      });
}

}  // namespace troupe::http
