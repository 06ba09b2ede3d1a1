#include "actors/gateway/model_facts.h"

#include <algorithm>
#include <optional>

#include "actors/gateway/tool_form.h"

namespace troupe {
namespace {

void take(const std::optional<double>& given, float& into) {
  if (given) into = static_cast<float>(*given);
}

wire::Sampling default_sampling(const model::GenerationConfig& generation) {
  wire::Sampling sampling;
  take(generation.temperature, sampling.temperature);
  take(generation.top_p, sampling.top_p);
  take(generation.min_p, sampling.min_p);
  sampling.top_k = std::max(0, generation.top_k.value_or(0));
  take(generation.repetition_penalty, sampling.repetition_penalty);
  take(generation.presence_penalty, sampling.presence_penalty);
  take(generation.frequency_penalty, sampling.frequency_penalty);
  return sampling;
}

http::ThinkingSwitch thinking_switch(const ChatTemplate& chat) {
  if (chat.reads("enable_thinking")) return http::ThinkingSwitch::enable_thinking;
  return chat.reads("options") ? http::ThinkingSwitch::options : http::ThinkingSwitch::none;
}

}  // namespace

http::ModelFacts model_facts(const model::GenerationConfig& generation, const AnswerSyntax& syntax,
                             const ChatTemplate* chat) {
  http::ModelFacts facts;
  facts.sampling = default_sampling(generation);
  facts.tells_thoughts = syntax.reasoning() != ReasoningParser::none;
  if (syntax.tools() != ToolParser::none) {
    facts.tool_form = [syntax](const http::Json& tools, const http::ToolRules& rules,
                               const http::AnswerForm& other) {
      return tool_form(tools, rules, syntax, other);
    };
  }
  if (chat != nullptr) {
    facts.thinking_switch = thinking_switch(*chat);
    facts.template_reads_tools = chat->reads("tools");
  }
  return facts;
}

}  // namespace troupe
