#pragma once
// The head of a request, read once and strictly. What intermediaries read in different ways allows request
// smuggling and is refused: folded headers, two Hosts, a Transfer-Encoding other than chunked, a
// Content-Length that is given twice or beside it. Lines are checked as their bytes arrive, so that nothing
// is buffered beyond its limit.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe::http {

/// What the head says about the body that follows it, and about the connection.
struct HeadFacts {
  std::size_t bytes = 0;  ///< of the head, its empty line included
  bool chunked = false;
  std::optional<std::uint64_t> content_length;
  bool expect_continue = false;
  bool encoded = false;  ///< a Content-Encoding other than identity
  bool http10 = false;
  bool keep_alive = false;  ///< the client wants the connection kept
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

/// The parts of a head by which a request is admitted; empty: not given. Of header lines with the same name
/// the first counts. Views of the bytes that were read.
struct HeadView {
  std::string_view method;
  std::string_view target;
  std::string_view authorization;
  std::string_view x_api_key;
  std::string_view content_type;
  std::string_view if_none_match;
  std::string_view accept_encoding;
  std::string_view host;
  bool host_optional = false;  ///< HTTP/1.0
  std::string_view origin;
  std::string_view fetch_site;         ///< Sec-Fetch-Site
  std::string_view preflight_method;   ///< Access-Control-Request-Method
  std::string_view preflight_headers;  ///< Access-Control-Request-Headers
  bool encoded = false;                ///< has a Content-Encoding
  std::string_view request_id{};       ///< x-request-id
};

/// The headers that the server reads; others are checked and passed over.
enum class Header : std::uint8_t {
  accept_encoding,
  authorization,
  connection,
  content_encoding,
  content_length,
  content_type,
  expect,
  fetch_site,
  host,
  if_none_match,
  origin,
  preflight_headers,
  preflight_method,
  proxy_connection,
  request_id,
  transfer_encoding,
  x_api_key,
  x_forwarded_for,
  unknown,
};

class HeadParser {
 public:
  enum class Progress { need_more, complete, refused };

  /// `limits` outlives this.
  explicit HeadParser(const config::LimitOptions& limits) : limits_(&limits) {}

  /// `bytes` begins with the request's first byte and holds everything received since; only bytes that are
  /// new since the last call are examined. After `complete` or `refused` call reset() first.
  Progress parse(std::string_view bytes);
  void reset() { *this = HeadParser(*limits_); }

  /// The reason for `refused`; the connection must be closed after the answer.
  const Status& status() const { return status_; }

  // After `complete`. `head`: the first facts().bytes of what was parsed, or a copy.
  const HeadFacts& facts() const { return facts_; }
  HeadView view(std::string_view head) const;
  /// The values of all X-Forwarded-For lines, with commas between them.
  std::string forwarded_for(std::string_view head) const;

 private:
  /// A range of the head. No header begins at 0: the request line does.
  struct Part {
    std::uint32_t begin = 0;
    std::uint32_t size = 0;
    std::string_view of(std::string_view head) const { return head.substr(begin, size); }
  };

  void end_line(std::string_view line);
  void read_request_line(std::string_view line);
  void read_header(std::string_view line);
  void take_header(Header header, std::string_view value, Part place);
  void finish();
  void refuse(std::string_view message, std::string_view reason);

  const config::LimitOptions* limits_;
  std::size_t at_ = 0;  // first byte not examined
  std::size_t line_begin_ = 0;
  int lines_ = 0;  // complete ones, the request line first
  int hosts_ = 0;
  bool done_ = false;
  bool malformed_ = false;  // refused at the end, unless a sentence says more
  HeadFacts facts_;
  Part method_, target_;
  std::array<Part, static_cast<std::size_t>(Header::unknown)> headers_{};
  std::vector<Part> forwarded_for_;
  Status status_;
};

/// One line "name: value" of a head or of a chunked body's trailers.
struct HeaderLine {
  std::string_view name;
  std::string_view value;  ///< without blanks around it
};

/// Nothing when the name is none: empty, folded, or with a blank before the colon. Control characters in the
/// value are the caller's to refuse.
std::optional<HeaderLine> split_header(std::string_view line);

Header header_of(std::string_view name);

/// ASCII case-insensitive equality.
bool same_word(std::string_view a, std::string_view b);

/// Without the blanks and tabs around it.
std::string_view trimmed(std::string_view text);

/// RFC 9110's token, of one character at least.
bool is_token(std::string_view text);

}  // namespace troupe::http
