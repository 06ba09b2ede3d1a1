#include "actors/session/responses_writer.h"

#include "actors/session/answer_ids.h"

namespace troupe {
namespace {

http::ResponseState state_of(http::FinishReason finish, const http::Usage& usage) {
  http::ResponseState state;
  state.usage = &usage;
  state.status = http::ResponseState::Status::completed;
  if (finish == http::FinishReason::stop || finish == http::FinishReason::tool_calls) return state;
  state.status = http::ResponseState::Status::incomplete;
  state.incomplete_reason = finish == http::FinishReason::timeout ? "timeout" : "max_output_tokens";
  return state;
}

}  // namespace

ResponsesWriter::ResponsesWriter(const Ask& ask)
    : PartsWriter(ask),
      frame_(ask.answer.id, ask.answer.model, ask.answer.created_s, ask.answer.settings,
             ask.generation.sampling.temperature, ask.generation.sampling.top_p),
      events_(frame_) {}

void ResponsesWriter::name(http::AnswerPart& part, const RequestKey& key) const {
  using Kind = http::AnswerPart::Kind;
  const auto index = static_cast<std::int32_t>(parts().size());
  part.id = part_id(part.kind == Kind::thoughts ? "rs_"
                    : part.kind == Kind::text   ? "msg_"
                                                : "fc_",
                    key, index);
  if (part.kind == Kind::call) part.call_id = part_id("call_", key, index);
}

void ResponsesWriter::end(std::string& out, const AnswerContent& content, http::FinishReason finish) {
  const http::Usage used = usage_of(ask(), content);
  events_.end(out, parts(), state_of(finish, used));
}

void ResponsesWriter::append_whole(std::string& out, const AnswerContent& content,
                                   http::FinishReason finish) {
  const http::Usage used = usage_of(ask(), content);
  http::append_response(out, frame_, parts(), state_of(finish, used));
}

void ResponsesWriter::append_failure(std::string& out, const Status& status) {
  http::ResponseState state;
  state.status = http::ResponseState::Status::failed;
  state.error = &status;
  events_.end(out, parts(), state);
}

}  // namespace troupe
