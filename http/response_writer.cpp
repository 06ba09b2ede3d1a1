#include "http/response_writer.h"

#include <boost/asio/error.hpp>
#include <utility>

namespace troupe::http {

namespace asio = boost::asio;

void ResponseWriter::append_continue() { out_.append("HTTP/1.1 100 Continue\r\n\r\n"); }

void ResponseWriter::append_whole(ResponseHead head, const Output& output, bool head_request) {
  const bool empty = output.status == 204 || output.status == 304;
  if (empty) head.content_type = {};
  // The length of an event stream, which only HEAD has whole, is not known.
  if (!empty && output.content != Output::Content::events) head.content_length = output.body.size();
  append_response_head(out_, head, output.headers);
  if (head_request) return;
  out_.append(output.body);
  body_bytes_ = output.body.size();
}

void ResponseWriter::begin_stream(ResponseHead head,
                                  const std::vector<std::pair<std::string, std::string>>& headers) {
  head.content_type = "text/event-stream; charset=utf-8";
  head.stream = true;
  chunked_ = head.chunked;
  append_response_head(out_, head, headers);
}

void ResponseWriter::append_events(std::string_view bytes) {
  body_bytes_ += bytes.size();
  if (chunked_) {
    append_chunk(out_, bytes);
  } else {
    out_.append(bytes);
  }
}

void ResponseWriter::end_stream() {
  if (chunked_) out_.append(kLastChunk);
}

ResponseWriter::Progress ResponseWriter::write(Transport& transport) {
  while (unsent() > 0) {
    boost::system::error_code error;
    const std::size_t n = transport.write_some({out_.data() + sent_, unsent()}, error);
    if (error == asio::error::interrupted) continue;
    if (error == asio::error::would_block) {
      out_.erase(0, std::exchange(sent_, 0));
      return Progress::blocked;
    }
    if (error) return Progress::broken;
    sent_ += n;
  }
  sent_ = 0;
  out_.clear();
  return Progress::sent;
}

void ResponseWriter::shrink() {
  constexpr std::size_t kKept = 64 << 10;
  if (out_.empty() && out_.capacity() > kKept) std::string().swap(out_);
}

}  // namespace troupe::http
