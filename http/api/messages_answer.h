#pragma once
// Answers of /v1/messages: the message, the events of a stream, and errors, in Anthropic's JSON. Everything
// is appended to a string of the caller.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/api/answer_part.h"
#include "http/api/openai_response.h"

namespace troupe::http {

/// Why a message has ended.
struct MessageStop {
  std::string_view reason;    ///< "end_turn", "max_tokens", "stop_sequence", "tool_use"; empty: it has not
  std::string_view sequence;  ///< of stop_sequence: the string that was met
};

/// A whole message. `id` and `model` are escaped here. The input of a call that was cut is {}.
std::string format_message(std::string_view id, std::string_view model, std::span<const AnswerPart> parts,
                           const MessageStop& stop, const Usage& usage);

/// message_start, with an empty message, and a ping.
void append_message_start(std::string& out, std::string_view id, std::string_view model, const Usage& usage);
/// content_block_start; `index` is the block's place in the message.
void append_block_start(std::string& out, std::size_t index, const AnswerPart& part);
/// content_block_delta: the part's text has grown by `delta`.
void append_block_delta(std::string& out, std::size_t index, AnswerPart::Kind kind, std::string_view delta);
/// content_block_stop.
void append_block_stop(std::string& out, std::size_t index);
/// message_delta and message_stop.
void append_message_end(std::string& out, const MessageStop& stop, const Usage& usage);

/// {"type":"error","error":{"type","message"}}; `http_status` decides the type.
std::string message_error_json(const Status& status, int http_status);

/// {"input_tokens":N}
std::string format_token_count(std::int64_t tokens);

}  // namespace troupe::http
