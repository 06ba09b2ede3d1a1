#pragma once
// A strict check of a request's head before the parser sees it. The parser accepts several things that
// intermediaries read differently (folded headers, two Hosts, a Transfer-Encoding it does not know, equal
// Content-Lengths); each allows request smuggling. It also limits neither the number of headers nor the
// length of the target. This scanner refuses all of that, line by line as bytes arrive, so that nothing is
// buffered beyond its limit. Grammar and chunked bodies are left to the parser.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "config/options.h"

namespace troupe::http {

/// What the head says about the body that follows it.
struct HeadFacts {
  std::size_t bytes = 0;  ///< of the head, its empty line included
  bool chunked = false;
  std::optional<std::uint64_t> content_length;
  bool expect_continue = false;
  bool encoded = false;  ///< a Content-Encoding other than identity
  bool http10 = false;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

class HeadScanner {
 public:
  enum class Progress { need_more, complete, refused };

  /// `limits` outlives this.
  explicit HeadScanner(const config::LimitOptions& limits) : limits_(&limits) {}

  /// `bytes` begins with the request's first byte and holds everything received since; only bytes that are
  /// new since the last call are examined. After `complete` or `refused` call reset() first.
  Progress scan(std::string_view bytes);
  void reset() { *this = HeadScanner(*limits_); }

  const HeadFacts& facts() const { return facts_; }
  /// The reason for `refused`; the connection must be closed after the answer.
  const Status& status() const { return status_; }

 private:
  void end_line(std::string_view line);
  void read_request_line(std::string_view line);
  void read_header(std::string_view line);
  void read_framing(std::string_view name, std::string_view value);
  void finish();
  void refuse(std::string_view message, std::string_view reason);

  const config::LimitOptions* limits_;
  std::size_t at_ = 0;  // first byte not examined
  std::size_t line_begin_ = 0;
  int lines_ = 0;  // complete ones, the request line first
  int hosts_ = 0;
  bool done_ = false;
  HeadFacts facts_;
  Status status_;
};

/// ASCII case-insensitive equality.
bool same_word(std::string_view a, std::string_view b);

}  // namespace troupe::http
