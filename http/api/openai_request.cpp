#include "http/api/openai_request.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "http/api/client_policy.h"
#include "http/api/json_text.h"
#include "http/api/openai_fields.h"
#include "http/api/openai_form.h"
#include "http/api/request_fields.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMaxTopLevelFields = 512;  // every lookup is linear
constexpr std::size_t kMaxPromptIds = 16 << 20;
constexpr std::int64_t kMaxSequences = 1024;  // prompts times candidates of one request

// Parses the object and lets `read` fill the request. Returns the request or the first failure.
template <class T, class Read>
Result<Parsed<T>> parse_with(std::string_view body, const RequestRules& rules, ApiSet api, Read read) {
  auto root = parse_object(body, rules.limits);
  if (!root.ok()) return root.status();
  Fields fields(*root);
  Parsed<T> parsed;
  read(fields, parsed.request);
  if (!fields.ok()) return fields.status();
  auto ignored = ignored_fields(*root, api, rules.limits.strict_requests, fields.left_out());
  if (!ignored.ok()) return ignored.status();
  parsed.ignored_fields = *std::move(ignored);
  return parsed;
}

// One prompt: text, or a list of token ids.
Result<Prompt> read_prompt(const Json& value, const std::string& path, std::int64_t vocab_size) {
  if (const std::string* text = json::text(value)) {
    if (text->empty()) return invalid(path + " is empty", "prompt", "empty_prompt");
    return Prompt(*text);
  }
  if (!value.is_array()) {
    return invalid(path + " must be a string or a list of token ids, got " + excerpt(value), path,
                   "invalid_type");
  }
  if (value.empty()) return invalid(path + " is empty", "prompt", "empty_prompt");
  auto ids = as_token_ids(value, path, vocab_size);
  if (!ids.ok()) return ids.status();
  return Prompt(std::move(*ids));
}

// `name` is "prompt" or "prompt_token_ids"; both may be one prompt or a list of prompts.
std::vector<Prompt> read_prompts(Fields& fields, std::string_view name, const RequestRules& rules) {
  const Json& value = *fields.find(name);
  const std::span<const Json> list = json::items(value);
  const bool several = !list.empty() && (list.front().is_string() || list.front().is_array());
  std::vector<Prompt> prompts;
  const std::span<const Json> items = several ? list : std::span<const Json>(&value, 1);
  if (items.size() > static_cast<std::size_t>(rules.limits.max_prompts)) {
    fields.fail(name,
                "may hold at most " + std::to_string(rules.limits.max_prompts) + " prompts, got " +
                    std::to_string(items.size()),
                "too_many_elements");
    return {};
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string path = several ? std::string(name) + "." + std::to_string(i) : std::string(name);
    auto prompt = read_prompt(items[i], path, rules.model.vocab_size);
    if (!prompt.ok()) {
      fields.fail(prompt.status());
      return {};
    }
    prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

// Bounds the number of sequences: each candidate of each prompt becomes one, with its own copy of biases and
// stop ids, and all are made before the first is queued. A small body must not cause tens of thousands of
// them.
void check_sequences(Fields& fields, const config::LimitOptions& limits, const CompletionRequest& request) {
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  const std::int64_t candidates = std::max(request.best_of.value_or(1), request.sampling.n);
  const std::int64_t most =
      std::max({kMaxSequences, std::int64_t{limits.max_prompts}, std::int64_t{limits.max_n}});
  if (prompts * candidates <= most) return;
  const std::string_view field = candidates > request.sampling.n ? "best_of" : "n";
  fields.fail(field,
              "must be at most " + std::to_string(most / prompts) + " for " + std::to_string(prompts) +
                  " prompts (" + std::to_string(most) + " candidates in all), got " +
                  std::to_string(candidates),
              "out_of_range");
}

/// continue_final_message, for a conversation that has been read.
void read_continuation(Fields& fields, Conversation& conversation) {
  constexpr std::string_view kName = "continue_final_message";
  if (!fields.boolean(kName)) return;
  const std::span<const Json> messages = json::items(std::as_const(conversation.messages));
  const Json* last = messages.empty() ? nullptr : &messages.back();
  const bool plain =
      json::is(json::member(last, "role"), "assistant") && json::member(last, "tool_calls") == nullptr;
  if (conversation.add_generation_prompt) {
    fields.fail(kName, "needs add_generation_prompt to be false: the answer cannot both go on and begin anew",
                "invalid_value");
  } else if (!plain || conversation.without_template) {
    fields.fail(kName, "needs a last message of the assistant without tool calls, and the chat template",
                "invalid_value");
  }
  conversation.continue_final_message = true;
}

}  // namespace

Result<Json> parse_object(std::string_view body, const config::LimitOptions& limits) {
  auto root = parse_json(body, {limits.max_json_depth, limits.max_json_elements});
  if (!root.ok()) return root;
  if (!root->is_object()) {
    return invalid("The body must be a JSON object, got " + excerpt(*root), {}, "invalid_type");
  }
  if (root->size() > kMaxTopLevelFields) {
    return invalid("The body has " + std::to_string(root->size()) + " fields; at most " +
                       std::to_string(kMaxTopLevelFields) + " are allowed",
                   {}, "too_many_elements");
  }
  return root;
}

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

void read_chat(Fields& fields, const RequestRules& rules, std::string_view id_prefix,
               std::string_view fallback_id, ChatRequest& request) {
  request.model = read_model(fields, rules);
  request.id = read_answer_id(fields, id_prefix, fallback_id);
  apply_policies(fields, kChatApi);
  request.prompt_token_ids = fields.token_ids("prompt_token_ids", rules.model.vocab_size, kMaxPromptIds);
  request.conversation = read_conversation(fields, rules, request.prompt_token_ids.empty(), request.tools);
  request.conversation.without_template = fields.boolean("disable_chat_template");
  read_continuation(fields, request.conversation);
  request.thinking = read_thinking(fields);
  request.sampling = read_sampling(fields, rules, Api::chat);
  request.form = read_answer_form(fields, rules);
  check_beside_form(fields, request.form, request.sampling);
  read_logprobs(fields, rules, Api::chat, request.sampling);
}

Result<Parsed<ChatRequest>> parse_chat(std::string_view body, const RequestRules& rules,
                                       std::string_view fallback_id) {
  return parse_with<ChatRequest>(body, rules, kChatApi, [&](Fields& fields, ChatRequest& request) {
    read_chat(fields, rules, "chatcmpl-", fallback_id, request);
  });
}

Result<Parsed<CompletionRequest>> parse_completion(std::string_view body, const RequestRules& rules,
                                                   std::string_view fallback_id) {
  return parse_with<CompletionRequest>(
      body, rules, kCompletionsApi, [&](Fields& fields, CompletionRequest& request) {
        request.model = read_model(fields, rules);
        request.id = read_answer_id(fields, "cmpl-", fallback_id);
        apply_policies(fields, kCompletionsApi);
        if (fields.find("prompt_token_ids") != nullptr) {
          request.prompts = read_prompts(fields, "prompt_token_ids", rules);
        } else if (fields.find("prompt") != nullptr) {
          request.prompts = read_prompts(fields, "prompt", rules);
        } else {
          fields.fail("prompt", "is missing", "missing_required_parameter");
        }
        request.echo = fields.boolean("echo");
        request.sampling = read_sampling(fields, rules, Api::completions);
        request.form = read_answer_form(fields, rules);
        check_beside_form(fields, request.form, request.sampling);
        read_logprobs(fields, rules, Api::completions, request.sampling);
        if (const auto best_of = fields.integer("best_of", 1, rules.limits.max_best_of)) {
          request.best_of = static_cast<std::int32_t>(*best_of);
          if (*best_of < request.sampling.n) {
            fields.fail("best_of",
                        "must be at least n (" + std::to_string(request.sampling.n) + "), got " +
                            std::to_string(*best_of),
                        "out_of_range");
          } else if (request.sampling.stream && *best_of > request.sampling.n) {
            fields.fail("best_of", "above n cannot be streamed", "invalid_value");
          }
        }
        if (request.echo && request.sampling.truncate_prompt_tokens != 0) {
          fields.fail("truncate_prompt_tokens", "cannot be used with echo", "invalid_value");
        }
        check_sequences(fields, rules.limits, request);
      });
}

Result<Parsed<TokenizeRequest>> parse_tokenize(std::string_view body, const RequestRules& rules) {
  return parse_with<TokenizeRequest>(
      body, rules, kTokenizeApi, [&](Fields& fields, TokenizeRequest& request) {
        request.model = read_model(fields, rules);
        request.prompt = fields.string("prompt");
        if (request.prompt && fields.find("messages") != nullptr) {
          fields.fail("messages", "cannot be given together with prompt", "invalid_value");
        }
        if (!request.prompt && fields.find("messages") == nullptr) {
          fields.fail("prompt", "or messages is required", "missing_required_parameter");
        }
        ToolRules tools;
        if (!request.prompt) request.conversation = read_conversation(fields, rules, false, tools);
        request.add_special_tokens = fields.boolean("add_special_tokens", true);
        request.return_token_strs = fields.boolean("return_token_strs");
      });
}

Result<Parsed<DetokenizeRequest>> parse_detokenize(std::string_view body, const RequestRules& rules) {
  return parse_with<DetokenizeRequest>(
      body, rules, kDetokenizeApi, [&](Fields& fields, DetokenizeRequest& request) {
        request.model = read_model(fields, rules);
        if (fields.find("tokens") == nullptr)
          fields.fail("tokens", "is missing", "missing_required_parameter");
        request.tokens = fields.token_ids("tokens", rules.model.vocab_size, kMaxPromptIds);
      });
}

}  // namespace troupe::http
