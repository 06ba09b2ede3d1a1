#pragma once
// The body of POST /v1/responses. docs/apis.md lists the fields. Nothing is stored, so the items of earlier
// answers come with the request.
#include "http/api/openai_request.h"

namespace troupe::http {

/// Like parse_chat(). Failures name the fields of this API ("input.2.call_id").
Result<Parsed> parse_responses(std::string_view body, const RequestRules& rules);

}  // namespace troupe::http
