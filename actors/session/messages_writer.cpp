#include "actors/session/messages_writer.h"

#include "actors/session/answer_ids.h"
#include "http/api/openai_error.h"

namespace troupe {
namespace {

http::MessageStop stop_of(const AnswerContent& content, http::FinishReason finish) {
  switch (finish) {
    case http::FinishReason::tool_calls:
    case http::FinishReason::function_call: return {"tool_use", {}};
    case http::FinishReason::length: return {"max_tokens", {}};
    case http::FinishReason::timeout: return {"timeout", {}};
    default: break;
  }
  const std::string& met = content.sequences.front().choice.stop_met();
  if (!met.empty()) return {"stop_sequence", met};
  return {"end_turn", {}};
}

}  // namespace

void MessagesWriter::name(http::AnswerPart& part, const RequestKey& key) const {
  if (part.kind != http::AnswerPart::Kind::call) return;
  part.call_id = part_id("toolu_", key, static_cast<std::int32_t>(parts().size()));
}

void MessagesWriter::begin(std::string& out, const AnswerContent& content) {
  http::append_message_start(out, ask().answer.id, ask().answer.model, usage_of(ask(), content));
}

void MessagesWriter::end(std::string& out, const AnswerContent& content, http::FinishReason finish) {
  http::append_message_end(out, stop_of(content, finish), usage_of(ask(), content));
}

void MessagesWriter::append_whole(std::string& out, const AnswerContent& content, http::FinishReason finish) {
  out += http::format_message(ask().answer.id, ask().answer.model, parts(), stop_of(content, finish),
                              usage_of(ask(), content));
}

void MessagesWriter::append_failure(std::string& out, const Status& status) {
  out += http::last_event(http::message_error_json(status, http::http_status(status)), Api::messages);
}

}  // namespace troupe
