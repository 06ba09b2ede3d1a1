#include "http/client/response_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>

namespace troupe::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

constexpr std::uint32_t kMaxHeadBytes = 64 << 10;

}  // namespace

/// A body that is appended to a string and may be taken from it at any time. Beast's own string_body reserves
/// as many bytes as the server announces.
struct ResponseReader::AppendedBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(beast::http::header<is_request, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, beast::error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, beast::error_code& error) {
      error = {};
      std::size_t size = 0;
      for (const asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        size += buffer.size();
      }
      return size;
    }
    void finish(beast::error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

struct ResponseReader::Parser : beast::http::response_parser<AppendedBody> {
  explicit Parser(bool head_request) {
    eager(true);
    header_limit(kMaxHeadBytes);
    body_limit(boost::none);
    skip(head_request);
  }
};

ResponseReader::ResponseReader(bool head_request)
    : head_request_(head_request), parser_(std::make_unique<Parser>(head_request)) {}
ResponseReader::~ResponseReader() = default;
ResponseReader::ResponseReader(ResponseReader&&) noexcept = default;
ResponseReader& ResponseReader::operator=(ResponseReader&&) noexcept = default;

/// Returns how many bytes the parser has used; the rest has to come again with more behind it.
std::size_t ResponseReader::parse(std::string_view bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && !parser_->is_done()) {
    beast::error_code error;
    const std::size_t n = parser_->put(asio::buffer(bytes.data() + used, bytes.size() - used), error);
    used += n;
    if (parser_->is_done() && status() < 200) {  // an interim response; the real one follows
      parser_ = std::make_unique<Parser>(head_request_);
      continue;
    }
    if (error && error != beast::http::error::need_more) {
      error_ = error.message();
      break;
    }
    if (n == 0) break;
  }
  return used;
}

bool ResponseReader::feed(std::string_view bytes) {
  if (unread_.empty()) {
    const std::size_t used = parse(bytes);
    if (!done()) unread_ = bytes.substr(used);
  } else {
    unread_ += bytes;
    unread_.erase(0, parse(unread_));
  }
  return error_.empty();
}

bool ResponseReader::end() {
  if (done()) return true;
  if (!head_done()) return false;
  beast::error_code error;
  parser_->put_eof(error);
  return !error && done();
}

bool ResponseReader::head_done() const { return parser_->is_header_done() && status() >= 200; }
bool ResponseReader::done() const { return parser_->is_done(); }
int ResponseReader::status() const { return static_cast<int>(parser_->get().result_int()); }
std::string& ResponseReader::body() { return parser_->get().body(); }

std::map<std::string, std::string> ResponseReader::headers() const {
  std::map<std::string, std::string> out;
  for (const auto& field : parser_->get()) {
    std::string name(field.name_string().data(), field.name_string().size());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    out[std::move(name)] = std::string(field.value().data(), field.value().size());
  }
  return out;
}

}  // namespace troupe::http
