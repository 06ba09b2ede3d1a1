#pragma once
// The parts that request parsers share: sampling fields, conversations, tools, template arguments. Each
// reads its fields and records the first failure in `fields`. Private to the parsers of http/.
#include <string>
#include <string_view>

#include "http/fields.h"
#include "http/openai_request.h"

namespace troupe::http {

enum class Api { chat, completion };

/// Everything of SamplingRequest except `logprobs`, which chat and completions spell differently.
SamplingRequest read_sampling(Fields& fields, const RequestRules& rules, Api api);

/// logprobs: true with top_logprobs (chat), or logprobs: 5 (completions).
void read_logprobs(Fields& fields, const RequestRules& rules, Api api, SamplingRequest& sampling);

/// The model's name: one of rules.model.names, or empty when the request names none. 404 otherwise.
std::string read_model(Fields& fields, const RequestRules& rules);

/// Refuses what this server understands but does not offer: "unsupported_parameter" names the field.
void refuse_unsupported(Fields& fields, Api api);

/// The answer's id: request_id (with `prefix` put before it when missing), else `prefix`[user-]fallback.
std::string read_answer_id(Fields& fields, std::string_view prefix, std::string_view fallback);

/// Validated messages as canonical JSON. Empty when the field is absent and `required` is false.
std::string read_messages(Fields& fields, const RequestRules& rules, bool required);

/// Validated tools as canonical JSON; empty when there are none or tool_choice is "none".
std::string read_tools(Fields& fields, const RequestRules& rules);

/// chat_template_kwargs, with enable_thinking of `metadata` merged in when it is not set there.
std::string read_template_kwargs(Fields& fields);

}  // namespace troupe::http
