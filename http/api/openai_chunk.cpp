// Streamed chunks, written once per token. See openai_response.h.
#include "http/api/json_text.h"
#include "http/api/openai_logprobs.h"
#include "http/api/openai_usage.h"

namespace troupe::http {
namespace {

/// "tool_calls":[…], or "function_call":{…} of the first call.
void append_call_parts(std::string& out, std::span<const ToolCall> calls, bool legacy) {
  if (legacy) {
    out.append(R"("function_call":)");
    append_function(out, calls.front());
    return;
  }
  out.append(R"("tool_calls":[)");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    out.append(i > 0 ? R"(,{"index":)" : R"({"index":)");
    append_integer(out, calls[i].index);
    if (!calls[i].id.empty()) {
      out.append(R"(,"id":)");
      append_json_string(out, calls[i].id);
      out.append(R"(,"type":"function")");
    }
    out.append(R"(,"function":)");
    append_function(out, calls[i]);
    out.push_back('}');
  }
  out.push_back(']');
}

}  // namespace

AnswerFrame::AnswerFrame(Api api, std::string_view id, std::string_view model, std::int64_t created_s)
    : api_(api) {
  const bool chat = api == Api::chat;
  const auto prefix = [&](std::string_view object) {
    std::string out = R"({"id":)";
    append_json_string(out, id);
    out.append(R"(,"object":")").append(object).append(R"(","created":)");
    append_integer(out, created_s);
    out.append(R"(,"model":)");
    append_json_string(out, model);
    out.append(R"(,"choices":[)");
    return out;
  };
  chunk_prefix_ = "data: " + prefix(chat ? "chat.completion.chunk" : "text_completion");
  answer_prefix_ = prefix(chat ? "chat.completion" : "text_completion");
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "null";
    case FinishReason::stop: return "\"stop\"";
    case FinishReason::length: return "\"length\"";
    case FinishReason::tool_calls: return "\"tool_calls\"";
    case FinishReason::function_call: return "\"function_call\"";
    case FinishReason::timeout: return "\"timeout\"";
    case FinishReason::abort: return "\"abort\"";
  }
  return "null";
}

void append_function(std::string& out, const ToolCall& call) {
  out.push_back('{');
  if (!call.name.empty()) {
    out.append(R"("name":)");
    append_json_string(out, call.name);
    out.push_back(',');
  }
  out.append(R"("arguments":)");
  append_json_string(out, call.arguments);
  out.push_back('}');
}

void append_usage_object(std::string& out, const Usage& usage) {
  out.append(R"({"prompt_tokens":)");
  append_integer(out, usage.prompt_tokens);
  out.append(R"(,"completion_tokens":)");
  append_integer(out, usage.completion_tokens);
  out.append(R"(,"total_tokens":)");
  append_integer(out, usage.prompt_tokens + usage.completion_tokens);
  out.append(R"(,"prompt_tokens_details":{"cached_tokens":)");
  append_integer(out, usage.cached_tokens);
  append_visual_tokens(out, usage);
  out.append(R"(},"completion_tokens_details":{"reasoning_tokens":)");
  append_integer(out, usage.reasoning_tokens);
  if (usage.has_prediction) {
    out.append(R"(,"accepted_prediction_tokens":)");
    append_integer(out, usage.accepted_prediction_tokens);
    out.append(R"(,"rejected_prediction_tokens":)");
    append_integer(out, usage.rejected_prediction_tokens);
  }
  out.push_back('}');
  append_speculation(out, usage);
  out.push_back('}');
}

void append_speculation(std::string& out, const Usage& usage) {
  if (!usage.speculates) return;
  out.append(R"(,"speculation":{"draft_tokens":)");
  append_integer(out, usage.draft_tokens);
  out.append(R"(,"accepted_draft_tokens":)");
  append_integer(out, usage.accepted_draft_tokens);
  out.push_back('}');
}

void append_visual_tokens(std::string& out, const Usage& usage) {
  if (usage.image_tokens == 0 && usage.video_tokens == 0) return;
  out.append(R"(,"image_tokens":)");
  append_integer(out, usage.image_tokens);
  out.append(R"(,"video_tokens":)");
  append_integer(out, usage.video_tokens);
}

void append_role(std::string& out, const AnswerFrame& frame, std::int32_t index,
                 std::span<const TokenId> prompt_token_ids) {
  out.append(frame.chunk_prefix()).append(R"({"index":)");
  append_integer(out, index);
  out.append(R"(,"delta":{"role":"assistant","content":"")");
  if (!prompt_token_ids.empty()) {
    out.append(R"(,"prompt_token_ids":)");
    append_ids(out, prompt_token_ids);
  }
  out.append(R"(},"logprobs":null,"finish_reason":null}]})").append("\n\n");
}

void append_piece(std::string& out, const AnswerFrame& frame, const Piece& piece) {
  const bool chat = frame.api() == Api::chat;
  out.append(frame.chunk_prefix()).append(R"({"index":)");
  append_integer(out, piece.index);
  if (chat) {
    out.append(R"(,"delta":{)");
    const char* comma = "";
    if (!piece.text.empty()) {
      out.append(R"("content":)");
      append_json_string(out, piece.text);
      comma = ",";
    }
    if (!piece.reasoning.empty()) {
      out.append(comma).append(R"("reasoning_content":)");
      append_json_string(out, piece.reasoning);
      out.append(R"(,"reasoning":)");
      append_json_string(out, piece.reasoning);
      comma = ",";
    }
    if (!piece.calls.empty()) {
      out.append(comma);
      append_call_parts(out, piece.calls, piece.legacy_calls);
      comma = ",";
    }
    if (!piece.token_ids.empty()) {
      out.append(comma).append(R"("completion_token_ids":)");
      append_ids(out, piece.token_ids);
    }
    out.push_back('}');
  } else {
    out.append(R"(,"text":)");
    append_json_string(out, piece.text);
    if (!piece.prompt_token_ids.empty()) {
      out.append(R"(,"prompt_token_ids":)");
      append_ids(out, piece.prompt_token_ids);
    }
    if (!piece.token_ids.empty()) {
      out.append(R"(,"completion_token_ids":)");
      append_ids(out, piece.token_ids);
    }
  }
  out.append(R"(,"logprobs":)");
  if (!piece.with_logprobs) {
    out.append("null");
  } else if (!piece.made_logprobs.empty()) {
    out.append(piece.made_logprobs);
  } else if (chat) {
    append_chat_logprobs(out, piece.logprobs);
  } else {
    append_completion_logprobs(out, piece.logprobs, piece.text_offset);
  }
  out.append(R"(,"finish_reason":)").append(to_string(piece.finish)).append("}]");
  if (piece.usage != nullptr) {
    out.append(R"(,"usage":)");
    append_usage_object(out, *piece.usage);
  }
  out.append("}\n\n");
}

void append_usage(std::string& out, const AnswerFrame& frame, const Usage& usage) {
  out.append(frame.chunk_prefix()).append(R"(],"usage":)");
  append_usage_object(out, usage);
  out.append("}\n\n");
}

void append_done(std::string& out) { out.append("data: [DONE]\n\n"); }

}  // namespace troupe::http
