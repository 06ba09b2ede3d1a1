#include "http/server/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

namespace troupe::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr std::size_t kChunkHeaderBytes = 64 << 10;  // a longer one is an attack
// "0\r\n\r\n": at least so much of a chunked body is still to come, and Beast asserts that it sees it at
// once. Beast takes one part of the body a call (eager is off), so that this holds before each of them and
// the same bytes are refused however they arrive.
constexpr std::size_t kLastChunkBytes = 5;

std::string_view as_view(beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct RequestReader::Parser : beast::http::request_parser<beast::http::string_body> {};

RequestReader::RequestReader(const config::LimitOptions& limits) : limits_(limits), scanner_(limits) {}
RequestReader::~RequestReader() = default;

void RequestReader::append(std::span<const char> bytes) {
  asio::buffer_copy(buffer_.prepare(bytes.size()), asio::buffer(bytes.data(), bytes.size()));
  buffer_.commit(bytes.size());
}

std::size_t RequestReader::discard() {
  const std::size_t size = buffer_.size();
  buffer_.consume(size);
  return size;
}

void RequestReader::shrink() {
  constexpr std::size_t kKept = 4 << 10;  // of thousands of idle connections
  if (buffer_.size() == 0 && buffer_.capacity() > kKept) buffer_.shrink_to_fit();
}

std::size_t RequestReader::held_bytes() const {
  // Of a large body's reservation only what was written takes memory.
  constexpr std::size_t kReserved = 64 << 10;
  if (parser_ == nullptr) return buffer_.capacity();
  return buffer_.capacity() + std::min(body().capacity(), body().size() + kReserved);
}

RequestReader::Progress RequestReader::refuse(Status status) {
  refusal_ = std::move(status);
  return Progress::refused;
}

RequestReader::Progress RequestReader::read_head() {
  const auto bytes = buffer_.data();
  switch (scanner_.scan({static_cast<const char*>(bytes.data()), bytes.size()})) {
    case HeadScanner::Progress::need_more: return Progress::need_more;
    case HeadScanner::Progress::refused: return refuse(scanner_.status());
    case HeadScanner::Progress::complete: break;
  }
  facts_ = scanner_.facts();
  scanner_.reset();
  body_received_ = 0;
  parser_ = std::make_unique<Parser>();
  parser_->eager(false);
  parser_->header_limit(static_cast<std::uint32_t>(facts_.bytes + 1));
  // The connection checks a declared length, read_body() the rest. Beast's own limit counts a chunk again
  // whenever more of its header comes.
  parser_->body_limit(boost::none);
  beast::error_code error;
  parser_->put(asio::buffer(buffer_.data().data(), facts_.bytes), error);
  buffer_.consume(facts_.bytes);
  if (error || !parser_->is_header_done()) return refuse(invalid("The head is malformed", {}, "bad_request"));
  return Progress::complete;
}

RequestReader::Progress RequestReader::read_body() {
  while (!parser_->is_done()) {
    if (buffer_.size() < (parser_->chunked() ? kLastChunkBytes : 1)) return Progress::need_more;
    beast::error_code error;
    const std::size_t n = parser_->put(buffer_.data(), error);
    buffer_.consume(n);
    body_received_ += n;
    if (body().size() > static_cast<std::size_t>(limits_.max_body_bytes)) {
      const std::string limit = std::to_string(limits_.max_body_bytes);
      return refuse({Code::too_large, "The body has more than " + limit + " bytes", {}, "request_too_large"});
    }
    if (error && error != beast::http::error::need_more) {
      return refuse(invalid("The chunks of the body are malformed", {}, "bad_framing"));
    }
    if (n > 0) continue;
    if (buffer_.size() < kChunkHeaderBytes) return Progress::need_more;
    return refuse(invalid("A chunk header of the body is too long", {}, "bad_framing"));
  }
  return Progress::complete;
}

void RequestReader::end_request() { parser_.reset(); }

HeadView RequestReader::head() const {
  const auto& message = parser_->get();
  return {.method = as_view(message.method_string()),
          .target = as_view(message.target()),
          .authorization = header("Authorization"),
          .x_api_key = header("x-api-key"),
          .content_type = header("Content-Type"),
          .if_none_match = header("If-None-Match"),
          .host = header("Host"),
          .host_optional = facts_.http10,
          .origin = header("Origin"),
          .fetch_site = header("Sec-Fetch-Site"),
          .preflight_method = header("Access-Control-Request-Method"),
          .preflight_headers = header("Access-Control-Request-Headers"),
          .encoded = facts_.encoded};
}

std::string_view RequestReader::header(std::string_view name) const {
  return as_view(parser_->get()[beast::string_view(name.data(), name.size())]);
}

std::string RequestReader::joined_header(std::string_view name) const {
  std::string joined;
  const auto [begin, end] = parser_->get().equal_range(beast::string_view(name.data(), name.size()));
  for (auto line = begin; line != end; ++line) {
    if (!joined.empty()) joined.push_back(',');
    joined.append(as_view(line->value()));
  }
  return joined;
}

bool RequestReader::keep_alive() const { return !facts_.http10 && parser_->get().keep_alive(); }

std::string RequestReader::take_body() { return std::move(parser_->get().body()); }

const std::string& RequestReader::body() const { return parser_->get().body(); }

}  // namespace troupe::http
