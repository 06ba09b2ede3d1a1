// What a connection sends: answers, streams, and what becomes of them when they are not read. See connection.h.
#include <utility>

#include "http/api/openai_error.h"
#include "http/server/connection.h"

namespace troupe::http {

// ---- Answering --------------------------------------------------------------------------------------

void Connection::take(Output&& output) {
  if (!answering()) return;
  switch (output.kind) {
    case Output::Kind::whole:
      if (phase_ == Phase::streaming) {  // the head was sent already, so the error has to be an event
        append_events(last_event(output.body, request_.api()));
        end_stream(/*failed=*/true);
      } else {
        answer(std::move(output));
      }
      return;
    case Output::Kind::head:
      if (phase_ == Phase::waiting) begin_stream(output.headers);
      return;
    case Output::Kind::data: append_events(output.body); return;
    case Output::Kind::end: end_stream(output.failed); return;
  }
}

ResponseHead Connection::response_head(std::uint16_t status) {
  keep_alive_ = keep_alive_ && !io_.shared().draining;
  return {.status = status,
          .request_id = request_.id(),
          .date = io_.date(),
          .ignored = ignored_,
          .close = !keep_alive_,
          .allow_origin = request_.admission().allow_origin,
          .vary_origin = request_.admission().vary_origin};
}

void Connection::begin_stream(const std::vector<std::pair<std::string, std::string>>& extra) {
  ResponseHead head = response_head(200);
  head.chunked = !reader_.facts().http10;
  writer_.begin_stream(head, extra);
  enter(Phase::streaming);
}

void Connection::append_events(std::string_view bytes) {
  if (phase_ == Phase::waiting) begin_stream({});
  writer_.append_events(bytes);
}

void Connection::end_stream(bool failed) {
  if (phase_ == Phase::waiting) begin_stream({});
  if (phase_ != Phase::streaming) return;
  writer_.end_stream();
  stream_failed_ = failed;
  end_answer(200);
}

void Connection::answer(Output&& output) {
  const std::uint16_t status = output.status;
  ResponseHead head = response_head(status);
  head.content_type = content_type(output.content);
  if (status == 405) head.allow = request_.admission().match.allow;
  writer_.append_whole(head, std::move(output), request_.is_head());
  end_answer(status);
}

void Connection::end_answer(std::uint16_t status) {
  exchange_.close();
  record(status);
  ignored_.clear();
  enter(keep_alive_ ? Phase::idle : Phase::lingering);
}

// For input that cannot be trusted or is not wanted: what follows it is not read as a request.
bool Connection::refuse_and_close(const Status& status) {
  if (!request_.begun()) {
    request_.begin_unread();
    request_.set_id(io_.fresh_request_id());
  }
  reader_.end_request();
  keep_alive_ = false;
  answer(error_output(0, status, 0, request_.api()));
  return true;
}

void Connection::record(std::uint16_t status) {
  permit_.end_request();
  if (!request_.end()) return;
  io_.shared().backend.answered(request_.record(status, stream_failed_, writer_.body_bytes(), Clock::now()));
}

// ---- Writing and ending -----------------------------------------------------------------------------

void Connection::flush() {
  guarded([&] {
    write();
    if (phase_ == Phase::idle && reader_.buffered() > 0) progress();
  });
}

void Connection::write() {
  if (phase_ == Phase::closed) return;
  if (awaiting_room_) {
    count_unsent();
    return;
  }
  const ResponseWriter::Progress progress = writer_.write(transport_);
  count_unsent();
  switch (progress) {
    case ResponseWriter::Progress::broken: abort(); return;
    case ResponseWriter::Progress::blocked:
      awaiting_room_ = true;
      blocked_since_ = Clock::now();
      transport_.socket().async_wait(Socket::wait_write, [self = shared_from_this()](boost::system::error_code failed) {
        self->awaiting_room_ = false;
        if (!failed && self->phase_ != Phase::closed) self->flush();
      });
      return;
    case ResponseWriter::Progress::sent: break;
  }
  exchange_.settle();  // closed exchanges count as active until their answers are sent
  if (phase_ == Phase::lingering) shut();
  if (phase_ == Phase::idle) {
    writer_.shrink();
    reader_.shrink();
  }
}

void Connection::count_unsent() {
  memory_.set_unsent(phase_ == Phase::closed ? 0 : writer_.unsent());
}

void Connection::cut() {
  const Status slow{Code::cancelled, "The answer was read too slowly and is cut off here", {}, "slow_reader"};
  if (!writer_.cut_stream(last_event(error_output(0, slow, 0, request_.api()).body, request_.api()))) {
    abort();
    return;
  }
  if (const Exchange unanswered = exchange_.abandon(); unanswered.id != 0) io_.shared().backend.cancel(unanswered);
  keep_alive_ = false;
  stream_failed_ = true;
  record(200);
  enter(Phase::lingering);
  reader_.discard();
  flush();
}

}  // namespace troupe::http
