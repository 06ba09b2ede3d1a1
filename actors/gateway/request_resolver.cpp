#include "actors/gateway/request_resolver.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <variant>

#include "actors/gateway/tool_form.h"

namespace troupe {
namespace {

template <class To, class From>
To pick(const std::optional<From>& request, const std::optional<From>& checkpoint, To otherwise) {
  if (request) return static_cast<To>(*request);
  if (checkpoint) return static_cast<To>(*checkpoint);
  return otherwise;
}

std::int32_t clip(std::int64_t value) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(value, 0, std::numeric_limits<std::int32_t>::max()));
}

void take_prompt(http::Prompt& prompt, Source& source) {
  if (auto* text = std::get_if<std::string>(&prompt)) {
    source.texts.push_back(std::move(*text));
  } else {
    source.ids.push_back(std::move(std::get<std::vector<TokenId>>(prompt)));
  }
}

/// What a request says about how it is run, as opposed to what it generates.
void take_handling(http::SamplingRequest& wanted, Ask& ask) {
  ask.prefix = {wanted.cache, std::move(wanted.cache_salt)};
  ask.together = std::move(wanted.cache_key);
  ask.priority = wanted.priority;
  ask.source.keep_tokens = wanted.truncate_prompt_tokens;
  if (wanted.timeout)
    ask.timeout_ns = std::min(ask.timeout_ns, static_cast<std::int64_t>(*wanted.timeout * 1e9));
}

/// As a chat template takes a variable for a condition.
bool is_true(const http::Json& value) {
  if (value.is_boolean()) return json::is_true(&value);
  return value.is_number() ? value != 0 : !value.empty();
}

/// The field that asks for a call, if one is forced, or the one that lists the tools.
std::string field_of_calls(const http::ToolRules& rules, bool forced) {
  if (forced) return rules.legacy ? "function_call" : "tool_choice";
  return rules.legacy ? "functions" : "tools";
}

bool turns_thoughts_off(const std::optional<http::ReasoningEffort>& effort) {
  return effort == http::ReasoningEffort::none || effort == http::ReasoningEffort::minimal;
}

}  // namespace

ThinkingSwitch thinking_switch(const ChatTemplate* chat) {
  if (chat == nullptr) return ThinkingSwitch::none;
  if (chat->reads("enable_thinking")) return ThinkingSwitch::enable_thinking;
  return chat->reads("options") ? ThinkingSwitch::options : ThinkingSwitch::none;
}

Generation RequestResolver::generation(const http::SamplingRequest& wanted, std::uint64_t random) const {
  const model::GenerationConfig& own = options_.generation;
  Generation out;
  wire::Sampling& s = out.sampling;
  s.temperature = pick(wanted.temperature, own.temperature, 1.0f);
  s.top_p = pick(wanted.top_p, own.top_p, 1.0f);
  s.min_p = pick(wanted.min_p, own.min_p, 0.0f);
  const std::optional<std::int32_t> own_top_k = own.top_k;
  s.top_k = std::max(0, pick(wanted.top_k, own_top_k, std::int32_t{0}));
  s.repetition_penalty = pick(wanted.repetition_penalty, own.repetition_penalty, 1.0f);
  s.presence_penalty = pick(wanted.presence_penalty, own.presence_penalty, 0.0f);
  s.frequency_penalty = pick(wanted.frequency_penalty, own.frequency_penalty, 0.0f);
  if (s.top_p <= 0.0f || s.temperature < 1e-5f) {
    // Only the likeliest token is left. Greedy sampling avoids the division by a temperature near zero.
    s.temperature = 0.0f;
    s.top_p = 1.0f;
  }
  s.min_tokens = clip(wanted.min_tokens);
  s.seed = wanted.seed          ? static_cast<std::uint64_t>(*wanted.seed)
           : options_.seed != 0 ? options_.seed
                                : random;
  s.logprobs = wanted.logprobs.value_or(-1);
  s.prompt_logprobs = wanted.prompt_logprobs.value_or(-1);
  out.choices = wanted.n;
  out.best_of = wanted.n;
  out.max_tokens = wanted.max_tokens ? clip(*wanted.max_tokens) : -1;
  out.ignore_eos = wanted.ignore_eos;
  out.stop_ids = wanted.stop_token_ids;
  for (const auto& [token, bias] : wanted.logit_bias) out.logit_bias.push_back({token, bias});
  for (const TokenId token : wanted.bad_words_token_ids) out.logit_bias.push_back({token, -1e10f});
  out.bad_words = wanted.bad_words;
  out.stop = wanted.stop;
  out.include_stop = wanted.include_stop_str_in_output;
  return out;
}

Answer RequestResolver::answer(const std::string& id, const std::string& model,
                               const http::SamplingRequest& wanted, std::int64_t unix_s) const {
  Answer out;
  out.id = id;
  out.model = model.empty() || model == "default" ? options_.served_name : model;
  out.created_s = unix_s;
  out.stream = wanted.stream;
  out.include_usage = wanted.include_usage;
  out.continuous_usage = wanted.continuous_usage_stats;
  out.return_token_ids = wanted.return_token_ids;
  out.tokens_per_event = wanted.tokens_per_event;
  return out;
}

Status RequestResolver::chat(http::ChatRequest& request, std::uint64_t random, Ask& ask) const {
  ask.api = request.api;
  ask.generation = generation(request.sampling, random);
  ask.generation.form = std::move(request.form);
  take_handling(request.sampling, ask);
  ask.answer = answer(request.id, request.model, request.sampling, ask.answer.created_s);
  ask.answer.settings = std::move(request.settings);
  if (Status status = thinking(request.thinking, request.conversation, ask.generation); !status.ok())
    return status;
  if (Status status = tools(request, ask); !status.ok()) return status;
  if (!request.prompt_token_ids.empty()) {
    ask.source.ids.push_back(std::move(request.prompt_token_ids));
  } else {
    ask.source.conversation = std::move(request.conversation);
  }
  return {};
}

/// Whether calls are looked for, and the form that enforces them.
Status RequestResolver::tools(http::ChatRequest& request, Ask& ask) const {
  const http::ToolRules& rules = request.tools;
  const bool parses = options_.syntax.tools() != ToolParser::none;
  const bool forced =
      rules.choice == http::ToolRules::Choice::required || rules.choice == http::ToolRules::Choice::named;
  if (forced && !(parses && options_.enforces_forms)) {
    const std::string field = field_of_calls(rules, true);
    const std::string why =
        parses ? "this server holds no answer to a form: start it with --guided-decoding-backend"
               : "this server looks for none in answers: start it with --tool-call-parser";
    return {Code::unsupported, field + " asks for a call, but " + why, field, "unsupported_parameter"};
  }
  const http::Conversation& conversation = request.conversation;
  const bool renders = request.prompt_token_ids.empty() && !conversation.without_template;
  if (!conversation.tools.empty() && renders && !options_.template_reads_tools) {
    const std::string field = field_of_calls(rules, false);
    return {
        Code::unsupported,
        field +
            " cannot be given: this model's chat template does not show them to the model; start the server "
            "with --chat-template and one that does",
        field, "unsupported_parameter"};
  }
  http::AnswerForm& form = ask.generation.form;
  ask.generation.limits.tools = parses && rules.choice != http::ToolRules::Choice::none;
  ask.generation.limits.parallel_calls = rules.parallel;
  ask.answer.function_call = rules.legacy;
  if (!ask.generation.limits.tools || !options_.enforces_forms) return {};
  // A form of the text alone would not let the model call.
  if (form.kind == http::AnswerForm::Kind::free && !enforces_calls(request.conversation.tools, rules))
    return {};
  auto with_calls = tool_form(request.conversation.tools, rules, options_.syntax, form);
  if (!with_calls.ok()) return with_calls.status();
  if (const std::int32_t least = ask.generation.sampling.min_tokens; least > 1) {
    return invalid("min_tokens cannot be above 1 together with " + field_of_calls(rules, forced) +
                       ", whose enforced calls say when an answer is complete, got " + std::to_string(least),
                   "min_tokens", "invalid_value");
  }
  form = *std::move(with_calls);
  return {};
}

/// Turns thoughts on or off in the template's arguments and sets the limits of thoughts and answer.
Status RequestResolver::thinking(const http::ThinkingRules& rules, http::Conversation& conversation,
                                 Generation& generation) const {
  using Effort = http::ReasoningEffort;
  if (rules.response_max_tokens) generation.limits.response = clip(*rules.response_max_tokens);
  if (options_.syntax.reasoning() == ReasoningParser::none) {
    const std::string& field = rules.max_tokens_field;
    if (!rules.max_tokens || field.find('.') != field.npos)
      return {};  // only a field of its own asks for the limit alone
    return {
        Code::unsupported,
        field + " needs a server that tells thoughts apart from the answer: start it with --reasoning-parser",
        field, "unsupported_parameter"};
  }
  switch_thinking(conversation, !turns_thoughts_off(rules.effort));
  if (!options_.enforces_forms) {
    if (!rules.max_tokens) return {};
    return {Code::unsupported,
            rules.max_tokens_field +
                " needs a server that holds answers to a form: start it with --guided-decoding-backend",
            rules.max_tokens_field, "unsupported_parameter"};
  }
  if (rules.max_tokens) {
    generation.thinking.budget = clip(*rules.max_tokens);
  } else if (rules.effort) {
    generation.limits.thinking_share = *rules.effort == Effort::high     ? 0.8
                                       : *rules.effort == Effort::medium ? 0.5
                                                                         : 0.2;
  } else if (generation.max_tokens >= 0) {
    generation.limits.thinking_share =
        0.8;  // as in FastDeploy: an answer with a limit has room for an answer
  }
  return {};
}

/// Sets the switch of the chat template, unless the request has set it: by the template's own name, else by
/// enable_thinking, which counts for every template.
void RequestResolver::switch_thinking(http::Conversation& conversation, bool on) const {
  if (options_.thinking_switch == ThinkingSwitch::none) return;
  http::Json& kwargs = conversation.template_kwargs;
  if (kwargs.is_null()) kwargs = http::Json::object();
  if (options_.thinking_switch == ThinkingSwitch::enable_thinking) {
    if (!kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = on;
    return;
  }
  if (const auto wish = kwargs.find("enable_thinking"); wish != kwargs.end()) on = is_true(*wish);
  http::Json* given = json::member(kwargs, "options");
  http::Json& options = given != nullptr ? *given : json::put(kwargs, "options", http::Json::object());
  if (options.is_object() && !options.contains("thinking_mode"))
    options["thinking_mode"] = on ? "open" : "close";
}

void RequestResolver::completion(http::CompletionRequest& request, std::uint64_t random, Ask& ask) const {
  ask.api = Api::completions;
  ask.generation = generation(request.sampling, random);
  ask.generation.form = std::move(request.form);
  take_handling(request.sampling, ask);
  ask.answer = answer(request.id, request.model, request.sampling, ask.answer.created_s);
  ask.answer.echo = request.echo;
  ask.generation.best_of = std::max(request.best_of.value_or(1), ask.generation.choices);
  if (request.echo && ask.generation.sampling.logprobs >= 0) {
    ask.generation.sampling.prompt_logprobs =
        std::max(ask.generation.sampling.prompt_logprobs, ask.generation.sampling.logprobs);
  }
  for (http::Prompt& prompt : request.prompts) take_prompt(prompt, ask.source);
}

Result<Ask> RequestResolver::resolve(http::Call& call, std::uint64_t random, std::int64_t unix_s) const {
  Ask ask;
  ask.io = call.exchange.io;
  ask.exchange = call.exchange.id;
  ask.request_id = call.request_id;
  ask.body_bytes = static_cast<std::int64_t>(call.body_bytes);
  ask.client = call.client;
  ask.arrived_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(call.received.time_since_epoch()).count();
  ask.timeout_ns = std::chrono::nanoseconds(options_.timeout).count();
  ask.answer.created_s = unix_s;

  Status status;
  if (auto* request = std::get_if<http::ChatRequest>(&call.body)) {
    status = chat(*request, random, ask);
  } else if (auto* request = std::get_if<http::CompletionRequest>(&call.body)) {
    completion(*request, random, ask);
  } else if (auto* request = std::get_if<http::TokenizeRequest>(&call.body)) {
    ask.api = request->api;
    if (request->prompt) {
      ask.source.texts.push_back(*std::move(request->prompt));
    } else {
      if (options_.syntax.reasoning() != ReasoningParser::none) {
        switch_thinking(request->conversation, !turns_thoughts_off(request->effort));
      }
      ask.source.conversation = std::move(request->conversation);
    }
    ask.answer.return_token_ids = request->return_token_strs;
  } else {
    ask.api = Api::detokenize;
    ask.source.ids.push_back(std::move(std::get<http::DetokenizeRequest>(call.body).tokens));
  }
  if (!status.ok()) return status;
  return ask;
}

}  // namespace troupe
