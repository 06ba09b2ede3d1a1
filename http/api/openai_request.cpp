#include "http/api/openai_request.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "http/api/chat_body.h"
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

// One prompt: text, or a list of token ids. `param`: the field that an empty one is reported of.
Status read_prompt(const Json& value, const std::string& path, const std::string& param,
                   std::int64_t vocab_size, Source& source) {
  if (const std::string* text = json::text(value)) {
    if (text->empty()) return invalid(path + " is empty", param, "empty_prompt");
    source.texts.push_back(*text);
    return {};
  }
  if (!value.is_array()) {
    return invalid(path + " must be a string or a list of token ids, got " + excerpt(value), path,
                   "invalid_type");
  }
  if (value.empty()) return invalid(path + " is empty", param, "empty_prompt");
  auto ids = as_token_ids(value, path, vocab_size);
  if (!ids.ok()) return ids.status();
  source.ids.push_back(*std::move(ids));
  return {};
}

// Bounds the number of sequences: each candidate of each prompt becomes one, with its own copy of biases and
// stop ids, and all are made before the first is queued. A small body must not cause tens of thousands of
// them.
void check_sequences(Fields& fields, const config::LimitOptions& limits, const Request& request) {
  const auto prompts = static_cast<std::int64_t>(request.source.texts.size() + request.source.ids.size());
  const std::int64_t candidates = request.generation.best_of;
  const std::int64_t most =
      std::max({kMaxSequences, std::int64_t{limits.max_prompts}, std::int64_t{limits.max_n}});
  if (prompts * candidates <= most) return;
  const std::string_view field = candidates > request.generation.choices ? "best_of" : "n";
  fields.fail(field,
              "must be at most " + std::to_string(most / prompts) + " for " + std::to_string(prompts) +
                  " prompts (" + std::to_string(most) + " candidates in all), got " +
                  std::to_string(candidates),
              "out_of_range");
}

void read_best_of(Fields& fields, const config::LimitOptions& limits, Request& request) {
  const std::int32_t n = request.generation.choices;
  const auto best_of = fields.integer("best_of", 1, limits.max_best_of);
  if (!best_of) return;
  if (*best_of < n) {
    fields.fail("best_of", "must be at least n (" + std::to_string(n) + "), got " + std::to_string(*best_of),
                "out_of_range");
  } else if (request.answer.stream && *best_of > n) {
    fields.fail("best_of", "above n cannot be streamed", "invalid_value");
  }
  request.generation.best_of = std::max(n, clip(*best_of));
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

/// prediction: its text, of which parts follow one another as they are.
void read_prediction(Fields& fields, Request& request) {
  const Json* value = fields.find("prediction");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.fail("prediction", "must be an object, got " + excerpt(*value), "invalid_type");
  }
  const Json* type = json::member(*value, "type");
  if (!json::is(type, "content")) {
    return fields.fail(
        "prediction.type",
        type == nullptr ? "is missing; it must be \"content\"" : "must be \"content\", got " + excerpt(*type),
        type == nullptr ? "missing_required_parameter" : "invalid_value");
  }
  request.answer.has_prediction = true;
  std::string& text = request.source.prediction;
  const Json* content = json::given(*value, "content");
  if (content == nullptr) {
    return fields.fail("prediction.content", "is missing", "missing_required_parameter");
  }
  if (const std::string* whole = json::text(content)) {
    text = *whole;
    return;
  }
  if (!content->is_array()) {
    return fields.fail("prediction.content",
                       "must be a string or a list of text parts, got " + excerpt(*content), "invalid_type");
  }
  for (std::size_t i = 0; i < content->size(); ++i) {
    const std::string path = "prediction.content." + std::to_string(i);
    const Json& part = json::items(*content)[i];
    if (!json::is(json::member(part, "type"), "text")) {
      return fields.fail(path + ".type", "must be \"text\": a prediction is text alone", "invalid_value");
    }
    const std::string* words = json::text(json::member(part, "text"));
    if (words == nullptr) return fields.fail(path + ".text", "must be a string", "invalid_type");
    text += *words;
  }
}

}  // namespace

void read_prompts(Fields& fields, std::string_view name, int most, std::int64_t vocab_size, Source& source) {
  const Json& value = *fields.find(name);
  const std::span<const Json> list = json::items(value);
  const bool several = !list.empty() && (list.front().is_string() || list.front().is_array());
  const std::span<const Json> items = several ? list : std::span<const Json>(&value, 1);
  if (items.size() > static_cast<std::size_t>(most)) {
    fields.fail(name,
                "may hold at most " + std::to_string(most) + " prompts, got " + std::to_string(items.size()),
                "too_many_elements");
    return;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string path = several ? std::string(name) + "." + std::to_string(i) : std::string(name);
    if (items[i].is_string() != items.front().is_string()) {
      return fields.fail(invalid(
          path + " must be of the same kind as the first prompt, all texts or all lists of token ids, got " +
              excerpt(items[i]),
          path, "invalid_type"));
    }
    const std::string param = name == "input" ? path : "prompt";
    if (Status status = read_prompt(items[i], path, param, vocab_size, source); !status.ok()) {
      return fields.fail(std::move(status));
    }
  }
}

Result<Parsed> parse_with(std::string_view body, const RequestRules& rules, Api api,
                          const std::function<void(Fields&, Request&)>& read) {
  auto root = parse_object(body, rules.limits);
  if (!root.ok()) return root.status();
  Fields fields(*root);
  Parsed parsed{new_request(api, rules), {}};
  read(fields, parsed.request);
  if (!fields.ok()) return fields.status();
  auto ignored = ignored_fields(*root, bit(api), rules.limits.strict_requests, fields.left_out());
  if (!ignored.ok()) return ignored.status();
  parsed.ignored_fields = *std::move(ignored);
  return parsed;
}

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

void read_chat(Fields& fields, const RequestRules& rules, std::string_view id_prefix, MediaParts* media,
               Request& request, ChatRules& chat) {
  request.answer.model = read_model(fields, rules);
  request.answer.id = read_answer_id(fields, id_prefix, rules);
  apply_policies(fields, kChatApi);
  Source& source = request.source;
  auto ids = fields.token_ids("prompt_token_ids", rules.model.vocab_size, kMaxPromptIds);
  read_conversation(fields, rules, ids.empty(), chat.tools, media, source);
  source.conversation.without_template = fields.boolean("disable_chat_template");
  if (!source.media.empty()) {
    constexpr const char* kWhy = "cannot be used with images or videos: the chat template places them";
    if (!ids.empty()) fields.fail(not_offered("prompt_token_ids", kWhy));
    if (source.conversation.without_template) fields.fail(not_offered("disable_chat_template", kWhy));
  }
  if (!ids.empty()) source.ids.push_back(std::move(ids));
  read_continuation(fields, source.conversation);
  chat.thinking = read_thinking(fields);
  read_sampling(fields, rules, Api::chat, request);
  request.generation.form = read_answer_form(fields, rules);
  check_beside_form(fields, request.generation.form);
  read_logprobs(fields, rules, Api::chat, request);
}

Result<Parsed> settle_chat(Result<Parsed> parsed, const ChatRules& chat, const RequestRules& rules) {
  if (!parsed.ok()) return parsed;
  Request& request = parsed->request;
  if (Status status = settle_thinking(chat.thinking, rules, request); !status.ok()) return status;
  if (Status status = settle_tools(chat.tools, rules, request); !status.ok()) return status;
  if (!request.source.ids.empty()) request.source.conversation = {};  // they are the whole prompt
  return parsed;
}

Result<Parsed> parse_chat(std::string_view body, const RequestRules& rules) {
  ChatRules chat;
  auto parsed = parse_with(body, rules, Api::chat, [&](Fields& fields, Request& request) {
    read_chat(fields, rules, "chatcmpl-", nullptr, request, chat);
    read_prediction(fields, request);
  });
  return settle_chat(std::move(parsed), chat, rules);
}

Result<Parsed> parse_completion(std::string_view body, const RequestRules& rules) {
  return parse_with(body, rules, Api::completions, [&](Fields& fields, Request& request) {
    request.answer.model = read_model(fields, rules);
    request.answer.id = read_answer_id(fields, "cmpl-", rules);
    apply_policies(fields, kCompletionsApi);
    if (fields.find("prompt_token_ids") != nullptr) {
      read_prompts(fields, "prompt_token_ids", rules.limits.max_prompts, rules.model.vocab_size,
                   request.source);
    } else if (fields.find("prompt") != nullptr) {
      read_prompts(fields, "prompt", rules.limits.max_prompts, rules.model.vocab_size, request.source);
    } else {
      fields.fail("prompt", "is missing", "missing_required_parameter");
    }
    request.answer.echo = fields.boolean("echo");
    read_sampling(fields, rules, Api::completions, request);
    request.generation.form = read_answer_form(fields, rules);
    check_beside_form(fields, request.generation.form);
    read_logprobs(fields, rules, Api::completions, request);
    read_best_of(fields, rules.limits, request);
    if (request.answer.echo && request.source.keep_tokens != 0) {
      fields.fail("truncate_prompt_tokens", "cannot be used with echo", "invalid_value");
    }
    check_sequences(fields, rules.limits, request);
    wire::Sampling& sampling = request.generation.sampling;
    if (request.answer.echo && sampling.logprobs >= 0) {
      sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.logprobs);
    }
  });
}

Result<Parsed> parse_tokenize(std::string_view body, const RequestRules& rules) {
  return parse_with(body, rules, Api::tokenize, [&](Fields& fields, Request& request) {
    request.answer.model = read_model(fields, rules);
    auto prompt = fields.string("prompt");
    const bool messages = fields.find("messages") != nullptr;
    if (prompt && messages) {
      fields.fail("messages", "cannot be given together with prompt", "invalid_value");
    }
    if (!prompt && !messages) fields.fail("prompt", "or messages is required", "missing_required_parameter");
    if (prompt) {
      request.source.texts.push_back(*std::move(prompt));
    } else {
      ToolRules tools;
      read_conversation(fields, rules, false, tools, nullptr, request.source);
      switch_thinking(rules.model, {}, request.source.conversation);
    }
    (void)fields.boolean("add_special_tokens");  // as in read_sampling()
    request.answer.return_token_ids = fields.boolean("return_token_strs");
  });
}

Result<Parsed> parse_detokenize(std::string_view body, const RequestRules& rules) {
  return parse_with(body, rules, Api::detokenize, [&](Fields& fields, Request& request) {
    request.answer.model = read_model(fields, rules);
    if (fields.find("tokens") == nullptr) fields.fail("tokens", "is missing", "missing_required_parameter");
    request.source.ids.push_back(fields.token_ids("tokens", rules.model.vocab_size, kMaxPromptIds));
  });
}

}  // namespace troupe::http
