#include "http/api/responses_answer.h"

#include "http/api/json_text.h"
#include "http/api/openai_usage.h"

namespace troupe::http {
namespace {

using PartKind = AnswerPart::Kind;
using State = ResponseState::Status;

constexpr std::string_view kEventEnd = "}\n\n";

std::string_view name_of(State status) {
  switch (status) {
    case State::in_progress: return "in_progress";
    case State::completed: return "completed";
    case State::incomplete: return "incomplete";
    case State::failed: return "failed";
  }
  return "failed";
}

/// {"type":"output_text",…} or {"type":"reasoning_text",…}
void append_content_part(std::string& out, PartKind kind, std::string_view text) {
  out.append(kind == PartKind::thoughts ? R"({"type":"reasoning_text","text":)"
                                        : R"({"type":"output_text","annotations":[],"logprobs":[],"text":)");
  append_json_string(out, text);
  out.push_back('}');
}

/// The item as it is when it begins (`done` false: without its text), or as a whole.
void append_item(std::string& out, const AnswerPart& part, bool done) {
  const std::string_view status = !done ? "in_progress" : part.complete ? "completed" : "incomplete";
  out.append(R"({"id":")").append(part.id).append(R"(","type":")");
  switch (part.kind) {
    case PartKind::thoughts:
      out.append(R"(reasoning","summary":[],"encrypted_content":null,"content":[)");
      break;
    case PartKind::text: out.append(R"(message","role":"assistant","content":[)"); break;
    case PartKind::call:
      out.append(R"(function_call","call_id":")").append(part.call_id).append(R"(","name":)");
      append_json_string(out, part.name);
      out.append(R"(,"arguments":)");
      append_json_string(out, done ? std::string_view(part.text) : std::string_view());
      break;
  }
  if (part.kind != PartKind::call) {
    if (done) append_content_part(out, part.kind, part.text);
    out.push_back(']');
  }
  out.append(R"(,"status":")").append(status).append("\"}");
}

void append_response_usage(std::string& out, const Usage& usage) {
  out.append(R"({"input_tokens":)");
  append_integer(out, usage.prompt_tokens);
  out.append(R"(,"input_tokens_details":{"cached_tokens":)");
  append_integer(out, usage.cached_tokens);
  append_visual_tokens(out, usage);
  out.append(R"(,"cache_write_tokens":0},"output_tokens":)");
  append_integer(out, usage.completion_tokens);
  out.append(R"(,"output_tokens_details":{"reasoning_tokens":)");
  append_integer(out, usage.reasoning_tokens);
  out.append(R"(},"total_tokens":)");
  append_integer(out, usage.prompt_tokens + usage.completion_tokens);
  append_speculation(out, usage);
  out.push_back('}');
}

/// {"code","message"}: of the codes that OpenAI lists, the one for a failure of the server or a full queue.
void append_response_error(std::string& out, const Status& status) {
  out.append(status.code == Code::overloaded ? R"({"code":"rate_limit_exceeded","message":)"
                                             : R"({"code":"server_error","message":)");
  append_json_string(out, status.message);
  out.push_back('}');
}

}  // namespace

ResponseFrame::ResponseFrame(std::string_view id, std::string_view model, std::int64_t created_s,
                             std::string_view settings, float temperature, float top_p) {
  prefix_ = R"({"id":)";
  append_json_string(prefix_, id);
  prefix_.append(R"(,"object":"response","created_at":)");
  append_integer(prefix_, created_s);
  prefix_.append(R"(,"model":)");
  append_json_string(prefix_, model);
  prefix_.append(R"(,"temperature":)");
  append_logprob(prefix_, temperature);
  prefix_.append(R"(,"top_p":)");
  append_logprob(prefix_, top_p);
  if (!settings.empty()) prefix_.append(",").append(settings);
}

void append_response(std::string& out, const ResponseFrame& frame, std::span<const AnswerPart> parts,
                     const ResponseState& state) {
  out.append(frame.prefix()).append(R"(,"status":")").append(name_of(state.status)).append(R"(","error":)");
  if (state.error != nullptr) {
    append_response_error(out, *state.error);
  } else {
    out.append("null");
  }
  out.append(R"(,"incomplete_details":)");
  if (state.incomplete_reason.empty()) {
    out.append("null");
  } else {
    out.append(R"({"reason":")").append(state.incomplete_reason).append("\"}");
  }
  out.append(R"(,"output":[)");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_item(out, parts[i], /*done=*/true);
  }
  out.append(R"(],"usage":)");
  if (state.usage != nullptr) {
    append_response_usage(out, *state.usage);
  } else {
    out.append("null");
  }
  out.push_back('}');
}

/// event: TYPE, and its data up to the number.
void ResponseEvents::open_event(std::string& out, std::string_view type) {
  out.append("event: ")
      .append(type)
      .append("\ndata: {\"type\":\"")
      .append(type)
      .append(R"(","sequence_number":)");
  append_integer(out, next_++);
}

/// The same, up to the places of item and content.
void ResponseEvents::open_part_event(std::string& out, std::string_view type, std::size_t index,
                                     const AnswerPart& part) {
  open_event(out, type);
  out.append(R"(,"item_id":")").append(part.id).append(R"(","output_index":)");
  append_integer(out, static_cast<std::int64_t>(index));
  if (part.kind != PartKind::call) out.append(R"(,"content_index":0)");
}

void ResponseEvents::append_item_event(std::string& out, std::string_view type, std::size_t index,
                                       const AnswerPart& part, bool done) {
  open_event(out, type);
  out.append(R"(,"output_index":)");
  append_integer(out, static_cast<std::int64_t>(index));
  out.append(R"(,"item":)");
  append_item(out, part, done);
  out.append(kEventEnd);
}

void ResponseEvents::begin(std::string& out) {
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    open_event(out, type);
    out.append(R"(,"response":)");
    append_response(out, frame_, {}, {});
    out.append(kEventEnd);
  }
}

void ResponseEvents::begin_part(std::string& out, std::size_t index, const AnswerPart& part) {
  append_item_event(out, "response.output_item.added", index, part, /*done=*/false);
  if (part.kind == PartKind::call) return;
  open_part_event(out, "response.content_part.added", index, part);
  out.append(R"(,"part":)");
  append_content_part(out, part.kind, {});
  out.append(kEventEnd);
}

void ResponseEvents::grow(std::string& out, std::size_t index, const AnswerPart& part,
                          std::string_view delta) {
  switch (part.kind) {
    case PartKind::thoughts: open_part_event(out, "response.reasoning_text.delta", index, part); break;
    case PartKind::text: open_part_event(out, "response.output_text.delta", index, part); break;
    case PartKind::call: open_part_event(out, "response.function_call_arguments.delta", index, part); break;
  }
  out.append(R"(,"delta":)");
  append_json_string(out, delta);
  if (part.kind == PartKind::text) out.append(R"(,"logprobs":[])");
  out.append(kEventEnd);
}

void ResponseEvents::end_part(std::string& out, std::size_t index, const AnswerPart& part) {
  switch (part.kind) {
    case PartKind::thoughts:
      open_part_event(out, "response.reasoning_text.done", index, part);
      out.append(R"(,"text":)");
      break;
    case PartKind::text:
      open_part_event(out, "response.output_text.done", index, part);
      out.append(R"(,"logprobs":[],"text":)");
      break;
    case PartKind::call:
      open_part_event(out, "response.function_call_arguments.done", index, part);
      out.append(R"(,"name":)");
      append_json_string(out, part.name);
      out.append(R"(,"arguments":)");
      break;
  }
  append_json_string(out, part.text);
  out.append(kEventEnd);
  if (part.kind != PartKind::call) {
    open_part_event(out, "response.content_part.done", index, part);
    out.append(R"(,"part":)");
    append_content_part(out, part.kind, part.text);
    out.append(kEventEnd);
  }
  append_item_event(out, "response.output_item.done", index, part, /*done=*/true);
}

void ResponseEvents::end(std::string& out, std::span<const AnswerPart> parts, const ResponseState& state) {
  open_event(out, "response." + std::string(name_of(state.status)));
  out.append(R"(,"response":)");
  append_response(out, frame_, parts, state);
  out.append(kEventEnd);
}

}  // namespace troupe::http
