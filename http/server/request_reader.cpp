#include "http/server/request_reader.h"

#include <algorithm>
#include <utility>

namespace troupe::http {
namespace {

/// What a string holds outside of itself.
std::size_t heap_bytes(const std::string& text) {
  return text.capacity() > std::string().capacity() ? text.capacity() : 0;
}

}  // namespace

void RequestReader::append(std::span<const char> bytes) {
  input_.erase(0, std::exchange(used_, 0));
  input_.append(bytes.data(), bytes.size());
}

void RequestReader::consume(std::size_t bytes) {
  used_ += bytes;
  if (used_ < input_.size()) return;
  input_.clear();
  used_ = 0;
}

std::size_t RequestReader::discard() {
  const std::size_t size = buffered();
  consume(size);
  return size;
}

void RequestReader::shrink() {
  constexpr std::size_t kKept = 4 << 10;  // of thousands of idle connections
  if (buffered() == 0 && input_.capacity() > kKept) std::string().swap(input_);
}

std::size_t RequestReader::held_bytes() const {
  // Of a large body's reservation only what was written takes memory.
  constexpr std::size_t kReserved = 64 << 10;
  return heap_bytes(input_) + heap_bytes(head_) + std::min(heap_bytes(body_), body_.size() + kReserved);
}

RequestReader::Progress RequestReader::refuse(Status status) {
  refusal_ = std::move(status);
  return Progress::refused;
}

std::uint64_t RequestReader::most_bytes() const {
  return sink_ != nullptr ? sink_->most_bytes() : static_cast<std::uint64_t>(limits_.body_bytes());
}

/// Gives the sink, if there is one, what was read of the body.
Status RequestReader::pass_on() {
  if (sink_ == nullptr || body_.empty()) return {};
  Status status = sink_->write(body_);
  body_.clear();
  return status;
}

RequestReader::Progress RequestReader::refuse_large() {
  return refuse({Code::too_large,
                 "The body has more than " + std::to_string(most_bytes()) + " bytes",
                 {},
                 "request_too_large"});
}

RequestReader::Progress RequestReader::read_head() {
  switch (parser_.parse(unused())) {
    case HeadParser::Progress::need_more: return Progress::need_more;
    case HeadParser::Progress::refused: return refuse(parser_.status());
    case HeadParser::Progress::complete: break;
  }
  facts_ = parser_.facts();
  head_ = unused().substr(0, facts_.bytes);
  consume(facts_.bytes);
  body_received_ = 0;
  chunks_.reset();
  return Progress::complete;
}

RequestReader::Progress RequestReader::read_body() {
  if (facts_.chunked) return read_chunks();
  const std::uint64_t length = facts_.content_length.value_or(0), left = length - body_received_;
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffered()));
  const bool first = body_received_ == 0 && n > 0;
  if (first && sink_ == nullptr && length <= most_bytes()) body_.reserve(length);
  body_.append(unused().substr(0, n));
  body_received_ += n;
  consume(n);
  if (too_large()) return refuse_large();
  if (Status status = pass_on(); !status.ok()) return refuse(std::move(status));
  return n == left ? Progress::complete : Progress::need_more;
}

RequestReader::Progress RequestReader::read_chunks() {
  for (;;) {
    std::size_t consumed = 0;
    const ChunkedBody::Progress progress = chunks_.read(unused(), consumed, body_);
    body_received_ += consumed;
    consume(consumed);
    switch (progress) {
      case ChunkedBody::Progress::need_more: return Progress::need_more;
      case ChunkedBody::Progress::data:
        if (too_large()) return refuse_large();
        if (Status status = pass_on(); !status.ok()) return refuse(std::move(status));
        break;
      case ChunkedBody::Progress::complete: return Progress::complete;
      case ChunkedBody::Progress::malformed:
        return refuse(invalid("The chunks of the body are malformed", {}, "bad_framing"));
      case ChunkedBody::Progress::too_long:
        return refuse(invalid("A chunk header of the body is too long", {}, "bad_framing"));
    }
  }
}

void RequestReader::end_request() {
  parser_.reset();
  std::string().swap(head_);
  std::string().swap(body_);
  sink_.reset();
}

}  // namespace troupe::http
