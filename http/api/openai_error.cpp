#include "http/api/openai_error.h"

#include "http/api/json_text.h"
#include "http/api/messages_answer.h"

namespace troupe::http {
namespace {

// Reasons with an HTTP status of their own: Code does not distinguish them.
struct ReasonRow {
  std::string_view reason;
  int status;
};
constexpr ReasonRow kReasons[] = {
    {"method_not_allowed", 405}, {"request_timeout", 408},        {"request_too_large", 413},
    {"uri_too_long", 414},       {"unsupported_media_type", 415}, {"unsupported_encoding", 415},
    {"header_too_large", 431},   {"too_many_headers", 431},       {"not_implemented", 501},
};

struct CodeRow {
  int status;
  std::string_view type;
  std::string_view reason;  // written as "code" when the Status names no reason
};

CodeRow row_of(Code code) {
  switch (code) {
    case Code::ok: return {200, "server_error", "internal_error"};
    case Code::invalid_argument: return {400, "invalid_request_error", "invalid_value"};
    case Code::unauthorized: return {401, "authentication_error", "invalid_api_key"};
    case Code::forbidden: return {403, "permission_error", "forbidden"};
    case Code::not_found: return {404, "invalid_request_error", "not_found"};
    case Code::too_large: return {413, "invalid_request_error", "request_too_large"};
    case Code::overloaded: return {429, "rate_limit_error", "queue_full"};
    case Code::cancelled: return {499, "invalid_request_error", "cancelled"};
    case Code::unavailable: return {503, "server_error", "unavailable"};
    case Code::timeout: return {504, "timeout_error", "timeout"};
    case Code::unsupported: return {400, "invalid_request_error", "unsupported_parameter"};
    case Code::internal: return {500, "server_error", "internal_error"};
  }
  return {500, "server_error", "internal_error"};
}

void append_error(std::string& out, const Status& status) {
  const CodeRow row = row_of(status.code);
  out.append(R"({"error":{"message":)");
  append_json_string(out, status.message);
  out.append(R"(,"type":")").append(row.type).append(R"(","param":)");
  if (status.param.empty()) {
    out.append("null");
  } else {
    append_json_string(out, status.param);
  }
  out.append(R"(,"code":)");
  append_json_string(out, status.reason.empty() ? row.reason : std::string_view(status.reason));
  out.append("}}");
}

}  // namespace

int http_status(const Status& status) {
  for (const ReasonRow& row : kReasons) {
    if (row.reason == status.reason) return row.status;
  }
  return row_of(status.code).status;
}

std::string error_json(const Status& status) {
  std::string out;
  append_error(out, status);
  return out;
}

Output error_output(std::uint64_t exchange_id, const Status& status, std::uint32_t retry_after_ms, Api api) {
  Output output{.exchange_id = exchange_id, .kind = Output::Kind::whole};
  output.status = static_cast<std::uint16_t>(http_status(status));
  output.body = is_anthropic(api) ? message_error_json(status, output.status) : error_json(status);
  if (output.status == 429 || output.status == 503) {
    const std::uint32_t ms = retry_after_ms > 0 ? retry_after_ms : 1000;
    output.headers.emplace_back("Retry-After", std::to_string((ms + 999) / 1000));
    output.headers.emplace_back("retry-after-ms", std::to_string(ms));
  }
  if (output.status == 401) output.headers.emplace_back("WWW-Authenticate", "Bearer");
  return output;
}

std::string last_event(const std::string& error_body, Api api) {
  if (api != Api::responses && !is_anthropic(api)) return "data: " + error_body + "\n\ndata: [DONE]\n\n";
  return "event: error\ndata: " + error_body + "\n\n";
}

void append_error_event(std::string& out, const Status& status) {
  out.append("data: ");
  append_error(out, status);
  out.append("\n\n");
}

}  // namespace troupe::http
