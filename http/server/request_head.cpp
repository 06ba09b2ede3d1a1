#include "http/server/request_head.h"

#include <algorithm>
#include <charconv>

namespace troupe::http {
namespace {

constexpr std::size_t kMaxLine = 60 << 10;  // independent of the limits: the parser throws near 64 KiB

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// RFC 9110 token characters.
bool is_token(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

HeadScanner::Progress HeadScanner::scan(std::string_view bytes) {
  for (; at_ < bytes.size() && status_.ok() && !done_; ++at_) {
    const auto c = static_cast<unsigned char>(bytes[at_]);
    const bool first_line = lines_ == 0;
    if (c == '\n') {
      if (at_ == line_begin_ || bytes[at_ - 1] != '\r') {
        refuse("A line ends with a bare LF", "bad_request");
        break;
      }
      end_line(bytes.substr(line_begin_, at_ - 1 - line_begin_));
      line_begin_ = at_ + 1;
      continue;
    }
    if (at_ > line_begin_ && bytes[at_ - 1] == '\r') refuse("A CR stands alone", "bad_request");
    if ((c < 0x20 && c != '\r' && (c != '\t' || first_line)) || c == 0x7F) {
      refuse("The head holds a control character", "bad_request");
    }
    if (first_line && c >= 0x80) refuse("The request line holds a byte that is not ASCII", "bad_request");
    // The longest method and the version fit in 32 bytes; the exact check is at the end of the line.
    const std::size_t length = at_ - line_begin_;
    if (first_line && length > static_cast<std::size_t>(limits_->max_uri_bytes) + 32) {
      refuse("The request target is longer than " + std::to_string(limits_->max_uri_bytes) + " bytes",
             "uri_too_long");
    }
    if (!first_line && length == 0 && c != '\r' && lines_ > limits_->max_header_count) {
      refuse("More than " + std::to_string(limits_->max_header_count) + " header lines", "too_many_headers");
    }
    if (!first_line && at_ > facts_.bytes + static_cast<std::size_t>(limits_->max_header_bytes)) {
      refuse("The headers take more than " + std::to_string(limits_->max_header_bytes) + " bytes",
             "header_too_large");
    }
  }
  if (!status_.ok()) return Progress::refused;
  if (!done_) return Progress::need_more;
  facts_.bytes = at_;
  return Progress::complete;
}

void HeadScanner::end_line(std::string_view line) {
  if (lines_ == 0) {
    read_request_line(line);
    facts_.bytes = line.size() + 2;  // offset of the headers; finish() replaces it
  } else if (line.empty()) {
    finish();
  } else {
    read_header(line);
  }
  ++lines_;
}

void HeadScanner::read_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == 0 || first == line.npos || first == last) {
    refuse("The first line is not METHOD TARGET HTTP/1.1", "bad_request");
    return;
  }
  if (last - first - 1 > static_cast<std::size_t>(limits_->max_uri_bytes)) {
    refuse("The request target is longer than " + std::to_string(limits_->max_uri_bytes) + " bytes",
           "uri_too_long");
    return;
  }
  facts_.http10 = line.substr(last + 1) == "HTTP/1.0";
}

void HeadScanner::read_header(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') {
    refuse("A header is folded over two lines", "bad_request");
    return;
  }
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon == line.npos ? 0 : colon);
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_token)) {
    refuse("A header line has no valid name", "bad_request");
    return;
  }
  if (line.size() > kMaxLine) {
    refuse("A header line has more than " + std::to_string(kMaxLine) + " bytes", "header_too_large");
    return;
  }
  read_framing(name, trimmed(line.substr(colon + 1)));
}

void HeadScanner::read_framing(std::string_view name, std::string_view value) {
  if (same_word(name, "host")) {
    ++hosts_;
  } else if (same_word(name, "content-length")) {
    std::uint64_t length = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
    const bool number = !value.empty() && error == std::errc() && end == value.data() + value.size();
    if (!number || facts_.content_length) {
      refuse("Content-Length must be given once, as a number of bytes", "bad_framing");
      return;
    }
    facts_.content_length = length;
  } else if (same_word(name, "transfer-encoding")) {
    if (same_word(value, "chunked") && !facts_.chunked) {
      facts_.chunked = true;
    } else if (value.find(',') != value.npos &&
               same_word(trimmed(value.substr(value.rfind(',') + 1)), "chunked")) {
      refuse("Transfer codings other than chunked are not implemented", "not_implemented");
    } else {
      refuse("Transfer-Encoding must be chunked", "bad_framing");
    }
  } else if (same_word(name, "content-encoding")) {
    facts_.encoded |= !same_word(value, "identity");
  } else if (same_word(name, "expect")) {
    if (!same_word(value, "100-continue")) refuse("Expect may only be 100-continue", "bad_request");
    facts_.expect_continue = true;
  }
}

void HeadScanner::finish() {
  done_ = true;
  if (hosts_ > 1 || (hosts_ == 0 && !facts_.http10)) {
    refuse("The head must name exactly one Host, it names " + std::to_string(hosts_), "bad_request");
  } else if (facts_.chunked && (facts_.content_length || facts_.http10)) {
    refuse("Transfer-Encoding stands beside Content-Length or in HTTP/1.0", "bad_framing");
  }
}

void HeadScanner::refuse(std::string_view message, std::string_view reason) {
  if (status_.ok()) status_ = invalid(std::string(message), {}, std::string(reason));
}

}  // namespace troupe::http
