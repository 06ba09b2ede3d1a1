#include "http/api/messages_answer.h"

#include "http/api/json_body.h"
#include "http/api/json_text.h"
#include "http/api/openai_usage.h"

namespace troupe::http {
namespace {

using PartKind = AnswerPart::Kind;

constexpr JsonBounds kInputBounds{.depth = 64, .elements = 1'000'000};

/// The block with `text` in place of its own; of a call `input` is JSON.
void append_block(std::string& out, const AnswerPart& part, std::string_view text, std::string_view input) {
  switch (part.kind) {
    case PartKind::thoughts:
      out.append(R"({"type":"thinking","thinking":)");
      append_json_string(out, text);
      out.append(R"(,"signature":""})");
      return;
    case PartKind::text:
      out.append(R"({"type":"text","text":)");
      append_json_string(out, text);
      out.append(R"(,"citations":null})");
      return;
    case PartKind::call:
      out.append(R"({"type":"tool_use","id":")").append(part.call_id).append(R"(","name":)");
      append_json_string(out, part.name);
      out.append(R"(,"input":)").append(input).push_back('}');
      return;
  }
}

/// The arguments of a call, as the model wrote them when they are an object.
std::string_view input_of(const AnswerPart& part) {
  if (part.kind != PartKind::call) return {};
  const auto parsed = parse_json(part.text, kInputBounds);
  return parsed.ok() && parsed.value().is_object() ? std::string_view(part.text) : std::string_view("{}");
}

/// Tokens that were found in the prefix cache are no part of input_tokens.
void append_message_usage(std::string& out, const Usage& usage) {
  out.append(R"({"input_tokens":)");
  append_integer(out, usage.prompt_tokens - usage.cached_tokens);
  out.append(R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)");
  append_integer(out, usage.cached_tokens);
  out.append(R"(,"output_tokens":)");
  append_integer(out, usage.completion_tokens);
  out.append(R"(,"output_tokens_details":{"thinking_tokens":)");
  append_integer(out, usage.reasoning_tokens);
  out.push_back('}');
  append_speculation(out, usage);
  out.push_back('}');
}

/// "stop_reason":…,"stop_sequence":…
void append_stop(std::string& out, const MessageStop& stop) {
  out.append(R"("stop_reason":)");
  if (stop.reason.empty()) {
    out.append("null");
  } else {
    append_json_string(out, stop.reason);
  }
  out.append(R"(,"stop_sequence":)");
  if (stop.sequence.empty()) {
    out.append("null");
  } else {
    append_json_string(out, stop.sequence);
  }
}

void open_message_event(std::string& out, std::string_view type) {
  out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).push_back('"');
}

void open_block_event(std::string& out, std::string_view type, std::size_t index) {
  open_message_event(out, type);
  out.append(R"(,"index":)");
  append_integer(out, static_cast<std::int64_t>(index));
}

std::string_view error_type(int http_status) {
  switch (http_status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string format_message(std::string_view id, std::string_view model, std::span<const AnswerPart> parts,
                           const MessageStop& stop, const Usage& usage) {
  std::string out = R"({"id":)";
  append_json_string(out, id);
  out.append(R"(,"type":"message","role":"assistant","model":)");
  append_json_string(out, model);
  out.append(R"(,"content":[)");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_block(out, parts[i], parts[i].text, input_of(parts[i]));
  }
  out.append("],");
  append_stop(out, stop);
  out.append(R"(,"usage":)");
  append_message_usage(out, usage);
  out.push_back('}');
  return out;
}

void append_message_start(std::string& out, std::string_view id, std::string_view model, const Usage& usage) {
  open_message_event(out, "message_start");
  out.append(R"(,"message":)").append(format_message(id, model, {}, {}, usage)).append("}\n\n");
  open_message_event(out, "ping");
  out.append("}\n\n");
}

void append_block_start(std::string& out, std::size_t index, const AnswerPart& part) {
  open_block_event(out, "content_block_start", index);
  out.append(R"(,"content_block":)");
  append_block(out, part, {}, "{}");
  out.append("}\n\n");
}

void append_block_delta(std::string& out, std::size_t index, AnswerPart::Kind kind, std::string_view delta) {
  open_block_event(out, "content_block_delta", index);
  switch (kind) {
    case PartKind::thoughts: out.append(R"(,"delta":{"type":"thinking_delta","thinking":)"); break;
    case PartKind::text: out.append(R"(,"delta":{"type":"text_delta","text":)"); break;
    case PartKind::call: out.append(R"(,"delta":{"type":"input_json_delta","partial_json":)"); break;
  }
  append_json_string(out, delta);
  out.append("}}\n\n");
}

void append_block_stop(std::string& out, std::size_t index) {
  open_block_event(out, "content_block_stop", index);
  out.append("}\n\n");
}

void append_message_end(std::string& out, const MessageStop& stop, const Usage& usage) {
  open_message_event(out, "message_delta");
  out.append(R"(,"delta":{)");
  append_stop(out, stop);
  out.append(R"(},"usage":)");
  append_message_usage(out, usage);
  out.append("}\n\n");
  open_message_event(out, "message_stop");
  out.append("}\n\n");
}

std::string message_error_json(const Status& status, int http_status) {
  std::string out = R"({"type":"error","error":{"type":")";
  out.append(error_type(http_status)).append(R"(","message":)");
  append_json_string(out, status.message);
  out.append("}}");
  return out;
}

std::string format_token_count(std::int64_t tokens) {
  std::string out = R"({"input_tokens":)";
  append_integer(out, tokens);
  out.push_back('}');
  return out;
}

}  // namespace troupe::http
