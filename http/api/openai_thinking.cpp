// How long the model may think, and whether it does.
#include "http/api/openai_fields.h"

namespace troupe::http {
namespace {

/// As a chat template takes a variable for a condition.
bool is_true(const Json& value) {
  if (value.is_boolean()) return json::is_true(&value);
  return value.is_number() ? value != 0 : !value.empty();
}

double share_of(ReasoningEffort effort) {
  return effort == ReasoningEffort::high ? 0.8 : effort == ReasoningEffort::medium ? 0.5 : 0.2;
}

}  // namespace

ThinkingRules read_thinking(Fields& fields) {
  ThinkingRules thinking;
  thinking.max_tokens = fields.integer("reasoning_max_tokens", 1, kMaxInteger);
  if (const auto budget = fields.integer("thinking_token_budget", 0, kMaxInteger)) {
    if (thinking.max_tokens && *thinking.max_tokens != *budget) {
      fields.fail("thinking_token_budget", "and reasoning_max_tokens mean the same, but differ",
                  "invalid_value");
    }
    thinking.max_tokens = budget;
  }
  thinking.response_max_tokens = fields.integer("response_max_tokens", 1, kMaxInteger);
  if (const auto effort = fields.string("reasoning_effort")) {
    thinking.effort = effort_of(*effort);
    if (!thinking.effort) {
      fields.fail("reasoning_effort", "must be " + std::string(kEfforts) + ", got \"" + cut(*effort) + "\"",
                  "invalid_value");
    }
  }
  return thinking;
}

void switch_thinking(const ModelFacts& model, std::optional<ReasoningEffort> effort,
                     Conversation& conversation) {
  if (!model.tells_thoughts || model.thinking_switch == ThinkingSwitch::none) return;
  bool on = effort != ReasoningEffort::none && effort != ReasoningEffort::minimal;
  Json& kwargs = conversation.template_kwargs;
  if (kwargs.is_null()) kwargs = Json::object();
  if (model.thinking_switch == ThinkingSwitch::enable_thinking) {
    if (!kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = on;
    return;
  }
  if (const auto wish = kwargs.find("enable_thinking"); wish != kwargs.end()) on = is_true(*wish);
  Json* given = json::member(kwargs, "options");
  Json& options = given != nullptr ? *given : json::put(kwargs, "options", Json::object());
  if (options.is_object() && !options.contains("thinking_mode"))
    options["thinking_mode"] = on ? "open" : "close";
}

Status settle_thinking(const ThinkingRules& thinking, const RequestRules& rules, Request& request) {
  AnswerLimits& limits = request.generation.limits;
  const std::string& field = thinking.max_tokens_field;
  const auto unsupported = [&](const char* needs) {
    return Status{Code::unsupported, field + " needs a server that " + needs, field, "unsupported_parameter"};
  };
  if (thinking.response_max_tokens) limits.response = clip(*thinking.response_max_tokens);
  if (!rules.model.tells_thoughts) {
    if (!thinking.max_tokens || field.find('.') != field.npos)
      return {};  // only a field of its own asks for the limit alone
    return unsupported("tells thoughts apart from the answer: start it with --reasoning-parser");
  }
  switch_thinking(rules.model, thinking.effort, request.source.conversation);
  if (!rules.model.offers_forms) {
    if (!thinking.max_tokens) return {};
    return unsupported("holds answers to a form: start it with --guided-decoding-backend");
  }
  if (thinking.max_tokens) {
    limits.thinking = clip(*thinking.max_tokens);
  } else if (thinking.effort) {
    limits.thinking_share = share_of(*thinking.effort);
  } else if (request.generation.max_tokens >= 0) {
    limits.thinking_share = 0.8;  // as in FastDeploy: an answer with a limit has room for an answer
  }
  return {};
}

}  // namespace troupe::http
