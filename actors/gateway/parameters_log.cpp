#include "actors/gateway/parameters_log.h"

#include <cmath>
#include <string>
#include <vector>

namespace troupe {
namespace {

const char* kind_name(http::AnswerForm::Kind kind) {
  using Kind = http::AnswerForm::Kind;
  switch (kind) {
    case Kind::free: return "free";
    case Kind::json_object: return "json_object";
    case Kind::json_schema: return "json_schema";
    case Kind::regex: return "regex";
    case Kind::choice: return "choice";
    case Kind::grammar: return "grammar";
    case Kind::structural_tag: return "structural_tag";
  }
  return "";
}

/// As a JSON array: the strings may hold any character.
std::string json_list(const std::vector<std::string>& texts) { return json::to_text(http::Json(texts)); }

}  // namespace

void log_parameters(const Log& log, const Ask& ask) {
  if (!http::generates(ask.api)) return;
  const Generation& g = ask.generation;
  const wire::Sampling& s = g.sampling;
  const auto plain = [](float value) {
    return std::round(value * 1e6) / 1e6;
  };  // 0.9 and not 0.8999999761581421
  const std::size_t prompts = ask.source.texts.size() + ask.source.ids.size();
  log.detail("parameters", {kv("req", ask.request_id),
                            kv("api", to_string(ask.api)),
                            kv("model", ask.answer.model),
                            kv("stream", ask.answer.stream),
                            kv("messages", ask.source.conversation.messages.size()),
                            kv("tools", ask.source.conversation.tools.size()),
                            kv("prompts", prompts),
                            kv("max_tokens", g.max_tokens),
                            kv("min_tokens", s.min_tokens),
                            kv("n", g.choices),
                            kv("best_of", g.best_of),
                            kv("temperature", plain(s.temperature)),
                            kv("top_p", plain(s.top_p)),
                            kv("top_k", s.top_k),
                            kv("min_p", plain(s.min_p)),
                            kv("repetition_penalty", plain(s.repetition_penalty)),
                            kv("presence_penalty", plain(s.presence_penalty)),
                            kv("frequency_penalty", plain(s.frequency_penalty)),
                            kv("seed", s.seed),
                            kv("logprobs", s.logprobs),
                            kv("prompt_logprobs", s.prompt_logprobs),
                            kv("stop", json_list(g.stop)),
                            kv("stop_ids", g.stop_ids.size()),
                            kv("bad_words", json_list(g.bad_words)),
                            kv("logit_bias", g.logit_bias.size()),
                            kv("ignore_eos", g.ignore_eos),
                            kv("echo", ask.answer.echo),
                            kv("form", kind_name(g.form.kind)),
                            kv("thinking_tokens", g.limits.thinking),
                            kv("answer_tokens", g.limits.response),
                            kv("priority", ask.priority),
                            kv("timeout_s", static_cast<double>(ask.timeout_ns) * 1e-9),
                            kv("prefix_cache", ask.prefix.enabled)});
}

}  // namespace troupe
