#include "http/server/current_answer.h"

#include <utility>

#include "http/api/openai_error.h"

namespace troupe::http {

void CurrentAnswer::begin() {
  failed_ = false;
  writer_.begin_answer();
}

void CurrentAnswer::set_ignored(const std::vector<std::string>& fields) { ignored_ = ignored_text(fields); }

ResponseHead CurrentAnswer::head_of(const AnswerHead& head, const CurrentRequest& request,
                                    std::uint16_t status) const {
  return {.status = status,
          .request_id = request.id(),
          .date = head.date,
          .ignored = ignored_,
          .close = head.close,
          .allow_origin = request.admission().allow_origin,
          .vary_origin = request.admission().vary_origin};
}

void CurrentAnswer::write_whole(const AnswerHead& head, const CurrentRequest& request, Output&& output) {
  ResponseHead full = head_of(head, request, output.status);
  full.content_type = content_type(output.content);
  if (output.status == 405) full.allow = request.admission().match.allow;
  writer_.append_whole(full, std::move(output), request.is_head());
}

void CurrentAnswer::begin_stream(const AnswerHead& head, const CurrentRequest& request, bool http10,
                                 const Output& first) {
  static const std::vector<std::pair<std::string, std::string>> kNone;
  ResponseHead full = head_of(head, request, 200);
  full.chunked = !http10;
  writer_.begin_stream(full, first.kind == Output::Kind::head ? first.headers : kNone);
}

bool CurrentAnswer::append(const Output& output, Api api) {
  switch (output.kind) {
    case Output::Kind::head: return false;
    case Output::Kind::data: writer_.append_events(output.body); return false;
    case Output::Kind::whole:
      writer_.append_events(last_event(output.body, api));
      failed_ = true;
      break;
    case Output::Kind::end: failed_ = output.failed; break;
  }
  writer_.end_stream();
  return true;
}

bool CurrentAnswer::cut(Api api) {
  const Status slow{Code::cancelled, "The answer was read too slowly and is cut off here", {}, "slow_reader"};
  if (!writer_.cut_stream(last_event(error_output(0, slow, 0, api).body, api))) return false;
  failed_ = true;
  return true;
}

}  // namespace troupe::http
