#pragma once
// Errors as answers: OpenAI's error object, the HTTP status of a failure, and Anthropic's words where they
// are wanted.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/api/api.h"
#include "http/server/backend.h"

namespace troupe::http {

/// HTTP status of a failure: by its code, except for reasons with a status of their own (method_not_allowed
/// is 405, request_too_large 413, …). `cancelled` is 499, which is only logged.
int http_status(const Status& status);

/// {"error":{"message","type","param","code"}}; all four keys always present, param null when empty.
std::string error_json(const Status& status);

/// The whole answer for a failure that happened before anything was sent: status, error object in the words
/// of `api`, and Retry-After with retry-after-ms on 429 and 503. `retry_after_ms` 0 means one second.
Output error_output(std::uint64_t exchange_id, const Status& status, std::uint32_t retry_after_ms = 0,
                    Api api = Api::chat);

/// What ends a stream that has begun when only the body of error_output() is known.
std::string last_event(const std::string& error_body, Api api);

/// The failure as an SSE frame, for a stream that has begun. Follow it with append_done().
void append_error_event(std::string& out, const Status& status);

}  // namespace troupe::http
