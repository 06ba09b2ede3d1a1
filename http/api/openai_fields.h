#pragma once
// The parts that request parsers share: sampling fields, conversations, tools, template arguments. Each
// reads its fields and records the first failure in `fields`. Private to the parsers of http/api/.
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "http/api/fields.h"
#include "http/api/openai_request.h"
#include "http/api/openai_response.h"

namespace troupe::http {

/// Upper limit of an integer field that has no other.
inline constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();

/// Everything of SamplingRequest except `logprobs`, which chat and completions spell differently.
SamplingRequest read_sampling(Fields& fields, const RequestRules& rules, Api api);

/// logprobs: true with top_logprobs (chat), or logprobs: 5 (completions).
void read_logprobs(Fields& fields, const RequestRules& rules, Api api, SamplingRequest& sampling);

/// The model's name: one of rules.model.names, or empty when the request names none. 404 otherwise.
std::string read_model(Fields& fields, const RequestRules& rules);

/// The answer's id: request_id (with `prefix` put before it when missing), else `prefix`[user-]fallback.
std::string read_answer_id(Fields& fields, std::string_view prefix, std::string_view fallback);

/// messages, tools and chat_template_kwargs, checked and moved out of the body. The field enable_thinking, at
/// the top or in `metadata`, counts as a template argument when chat_template_kwargs does not set it.
/// `required`: messages must be there.
Conversation read_conversation(Fields& fields, const RequestRules& rules, bool required,
                               ToolRules& tool_rules);

/// The tools that the model is to see, from tools or functions; null: none. Part of read_conversation().
Json read_tools(Fields& fields, const RequestRules& rules, ToolRules& tool_rules);

/// Parses the member `arguments` of a call, which OpenAI's format makes a string, into an object; `path` is
/// the call's. A text that begins as an object and is no JSON stays a text: answers hold such ones.
Status read_arguments(Json& call, const std::string& path);

/// The body as an object with at most as many fields and values as are allowed.
Result<Json> parse_object(std::string_view body, const config::LimitOptions& limits);

/// All fields of a chat request. Its id begins with `id_prefix`.
void read_chat(Fields& fields, const RequestRules& rules, std::string_view id_prefix,
               std::string_view fallback_id, ChatRequest& request);

/// reasoning_max_tokens or thinking_token_budget, response_max_tokens, reasoning_effort.
ThinkingRules read_thinking(Fields& fields);

}  // namespace troupe::http
