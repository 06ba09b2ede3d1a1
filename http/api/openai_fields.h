#pragma once
// The parts that request parsers share: sampling fields, conversations, tools, template arguments. Each
// reads its fields and records the first failure in `fields`. Private to the parsers of http/api/.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "http/api/client_policy.h"
#include "http/api/fields.h"
#include "http/api/openai_request.h"
#include "http/api/openai_response.h"

namespace troupe::http {

class MediaParts;

/// Upper limit of an integer field that has no other.
inline constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

/// A request with what it has without any field.
Request new_request(Api api, const RequestRules& rules);

/// Sampling and handling: everything that chat and completions share but `logprobs`, which they spell
/// differently.
void read_sampling(Fields& fields, const RequestRules& rules, Api api, Request& request);

/// logprobs: true with top_logprobs (chat), or logprobs: 5 (completions).
void read_logprobs(Fields& fields, const RequestRules& rules, Api api, Request& request);

/// The model's name for the answer: the first of rules.model.names when the request names none, "default" or
/// one of the served names, else the request's. 404 for names that the model does not have, unless any will
/// do.
std::string read_model(Fields& fields, const RequestRules& rules);

/// The answer's id: request_id (with `prefix` put before it when missing), else `prefix`[user-] and that of
/// `rules`.
std::string read_answer_id(Fields& fields, std::string_view prefix, const RequestRules& rules);

/// messages, tools and chat_template_kwargs, checked and moved out of the body. The field enable_thinking, at
/// the top or in `metadata`, counts as a template argument when chat_template_kwargs does not set it.
/// `required`: messages must be there. `media`: what the parts of images and videos held, when the messages
/// were made of another API's; null: they hold it themselves.
void read_conversation(Fields& fields, const RequestRules& rules, bool required, ToolRules& tool_rules,
                       MediaParts* media, Source& source);

/// The tools that the model is to see, from tools or functions; null: none. Part of read_conversation().
Json read_tools(Fields& fields, const RequestRules& rules, ToolRules& tool_rules);

/// Parses the member `arguments` of a call, which OpenAI's format makes a string, into an object; `path` is
/// the call's. A text that begins as an object and is no JSON stays a text: answers hold such ones.
Status read_arguments(Json& call, const std::string& path);

/// Parses the object and lets `read` fill the request. The request or the first failure.
Result<Parsed> parse_with(std::string_view body, const RequestRules& rules, Api api,
                          const std::function<void(Fields&, Request&)>& read);

/// The field `name`, which is there: a prompt, text or token ids, or a list of up to `most` prompts, all of
/// one kind, as Source keeps texts and ids apart.
void read_prompts(Fields& fields, std::string_view name, int most, std::int64_t vocab_size, Source& source);

/// What does not depend on how an answer is made: prefix cache, priority, timeout, the cut of prompts.
void read_handling(Fields& fields, Request& request);

/// The body as an object with at most as many fields and values as are allowed.
Result<Json> parse_object(std::string_view body, const config::LimitOptions& limits);

/// How long the model may think and answer.
struct ThinkingRules {
  std::optional<std::int64_t> max_tokens;                 ///< of the thoughts; >= 0
  std::string max_tokens_field = "reasoning_max_tokens";  ///< that max_tokens came from, for errors
  std::optional<std::int64_t> response_max_tokens;        ///< of the text behind them; >= 1
  std::optional<ReasoningEffort> effort;
};

/// reasoning_max_tokens or thinking_token_budget, response_max_tokens, reasoning_effort.
ThinkingRules read_thinking(Fields& fields);

/// Turns thoughts on or off in the template's arguments, unless the request has set its switch: by the
/// template's own name, else by enable_thinking, which counts for every template.
void switch_thinking(const ModelFacts& model, std::optional<ReasoningEffort> effort,
                     Conversation& conversation);

/// The switch, and the limits of thoughts and answer. Refuses what this server cannot limit.
Status settle_thinking(const ThinkingRules& thinking, const RequestRules& rules, Request& request);

/// Whether calls are looked for, and the form that enforces them. Refuses what this server cannot enforce,
/// and tools that the model would not see.
Status settle_tools(const ToolRules& tools, const RequestRules& rules, Request& request);

/// What of a chat is settled when all of its fields have been read.
struct ChatRules {
  ToolRules tools;
  ThinkingRules thinking;
};

/// All fields of a chat request. Its id begins with `id_prefix`; `media` is as for read_conversation().
void read_chat(Fields& fields, const RequestRules& rules, std::string_view id_prefix, MediaParts* media,
               Request& request, ChatRules& chat);

/// The request that read_chat() has read, or what of it cannot be served; a failure stays as it is.
Result<Parsed> settle_chat(Result<Parsed> parsed, const ChatRules& chat, const RequestRules& rules);

/// An integer as the limit of a count: what is above the largest means that.
std::int32_t clip(std::int64_t value);

}  // namespace troupe::http
