#pragma once
// The bodies of POST /v1/messages and /v1/messages/count_tokens, Anthropic's API. docs/apis.md lists the
// fields.
#include "http/api/openai_request.h"

namespace troupe::http {

/// Like parse_chat(). Failures name the fields of this API ("messages.2.content.0.tool_use_id").
Result<Parsed> parse_messages(std::string_view body, const RequestRules& rules);

/// The same conversation, to be counted.
Result<Parsed> parse_count_tokens(std::string_view body, const RequestRules& rules);

}  // namespace troupe::http
