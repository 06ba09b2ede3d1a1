#pragma once
// A model whose thoughts and calls are told apart, and whose form of calls shows what was asked for.
#include <string>

#include "http/api/openai_request.h"

namespace troupe::http::test {

/// Not a form: what the rules say, for tests to read.
inline Result<AnswerForm> shown_rules(const Json& tools, const ToolRules& rules, const AnswerForm&) {
  const char* const names[] = {"none", "auto", "required", "named"};
  AnswerForm form{.kind = AnswerForm::Kind::structural_tag};
  form.value = {{"choice", names[static_cast<std::size_t>(rules.choice)]},
                {"name", rules.name},
                {"schema_field", rules.schema_field},
                {"places", Json::array()}};
  for (std::size_t i = 0; i < tools.size(); ++i) form.value["places"].push_back(rules.place_of(i));
  return form;
}

inline ModelFacts answering_model() {
  return {.names = {"demo"},
          .vocab_size = 1000,
          .tells_thoughts = true,
          .tool_form = shown_rules,
          .thinking_switch = ThinkingSwitch::enable_thinking};
}

/// tool_choice, as the model is held to it: none, auto, required or named.
inline std::string tool_choice_of(const Request& request) {
  if (!request.generation.limits.tools) return "none";
  const AnswerForm& form = request.generation.form;
  return form.kind == AnswerForm::Kind::free
             ? "auto"
             : *troupe::json::text(troupe::json::member(&form.value, "choice"));
}

/// Whether a chat's thoughts are on, as its template is told.
inline bool thinks(const Request& request) {
  return troupe::json::is_true(
      troupe::json::member(&request.source.conversation.template_kwargs, "enable_thinking"));
}

}  // namespace troupe::http::test
