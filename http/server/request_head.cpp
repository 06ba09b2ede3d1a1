#include "http/server/request_head.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace troupe::http {
namespace {

constexpr std::size_t kMaxLine = 60 << 10;  // independent of the limits

constexpr std::pair<std::string_view, Header> kHeaders[] = {
    {"accept-encoding", Header::accept_encoding},
    {"access-control-request-headers", Header::preflight_headers},
    {"access-control-request-method", Header::preflight_method},
    {"authorization", Header::authorization},
    {"connection", Header::connection},
    {"content-encoding", Header::content_encoding},
    {"content-length", Header::content_length},
    {"content-type", Header::content_type},
    {"expect", Header::expect},
    {"host", Header::host},
    {"if-none-match", Header::if_none_match},
    {"origin", Header::origin},
    {"proxy-connection", Header::proxy_connection},
    {"sec-fetch-site", Header::fetch_site},
    {"transfer-encoding", Header::transfer_encoding},
    {"x-api-key", Header::x_api_key},
    {"x-forwarded-for", Header::x_forwarded_for},
    {"x-request-id", Header::request_id},
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool is_token_character(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

/// Calls `take` for each element of a list with commas. False when one is no token; empty ones are left out.
template <class Take>
bool each_token(std::string_view list, Take take) {
  for (;;) {
    const std::size_t comma = list.find(',');
    const std::string_view element = trimmed(list.substr(0, comma));
    if (!element.empty()) {
      if (!is_token(element)) return false;
      take(element);
    }
    if (comma == list.npos) return true;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

std::optional<HeaderLine> split_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon == line.npos ? 0 : colon);
  if (!is_token(name)) return std::nullopt;
  return HeaderLine{name, trimmed(line.substr(colon + 1))};
}

Header header_of(std::string_view name) {
  for (const auto& [known, header] : kHeaders) {
    if (same_word(name, known)) return header;
  }
  return Header::unknown;
}

HeadParser::Progress HeadParser::parse(std::string_view bytes) {
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

void HeadParser::end_line(std::string_view line) {
  if (lines_ == 0) {
    read_request_line(line);
    facts_.bytes = line.size() + 2;  // offset of the headers; parse() replaces it
  } else if (line.empty()) {
    finish();
  } else {
    read_header(line);
  }
  ++lines_;
}

void HeadParser::read_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == 0 || first == line.npos || first == last) {
    refuse("The first line is not METHOD TARGET HTTP/1.1", "bad_request");
    return;
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.size() > static_cast<std::size_t>(limits_->max_uri_bytes)) {
    refuse("The request target is longer than " + std::to_string(limits_->max_uri_bytes) + " bytes",
           "uri_too_long");
    return;
  }
  const std::string_view version = line.substr(last + 1);
  facts_.http10 = version == "HTTP/1.0";
  facts_.keep_alive = !facts_.http10;
  malformed_ = !is_token(line.substr(0, first)) || target.empty() || target.find(' ') != target.npos ||
               !(facts_.http10 || version == "HTTP/1.1");
  method_ = {0, static_cast<std::uint32_t>(first)};
  target_ = {static_cast<std::uint32_t>(first + 1), static_cast<std::uint32_t>(target.size())};
}

void HeadParser::read_header(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') {
    refuse("A header is folded over two lines", "bad_request");
    return;
  }
  const auto header = split_header(line);
  if (!header) {
    refuse("A header line has no valid name", "bad_request");
    return;
  }
  if (line.size() > kMaxLine) {
    refuse("A header line has more than " + std::to_string(kMaxLine) + " bytes", "header_too_large");
    return;
  }
  const auto begin = line_begin_ + static_cast<std::size_t>(header->value.data() - line.data());
  take_header(header_of(header->name), header->value,
              {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(header->value.size())});
}

void HeadParser::take_header(Header header, std::string_view value, Part place) {
  switch (header) {
    case Header::unknown: return;
    case Header::host: ++hosts_; break;
    case Header::content_length: {
      std::uint64_t length = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
      const bool number = !value.empty() && error == std::errc() && end == value.data() + value.size();
      if (!number || facts_.content_length) {
        refuse("Content-Length must be given once, as a number of bytes", "bad_framing");
        return;
      }
      facts_.content_length = length;
      break;
    }
    case Header::transfer_encoding:
      if (same_word(value, "chunked") && !facts_.chunked) {
        facts_.chunked = true;
      } else if (value.find(',') != value.npos &&
                 same_word(trimmed(value.substr(value.rfind(',') + 1)), "chunked")) {
        refuse("Transfer codings other than chunked are not implemented", "not_implemented");
      } else {
        refuse("Transfer-Encoding must be chunked", "bad_framing");
      }
      break;
    case Header::content_encoding: facts_.encoded |= !same_word(value, "identity"); break;
    case Header::expect:
      if (!same_word(value, "100-continue")) refuse("Expect may only be 100-continue", "bad_request");
      facts_.expect_continue = true;
      break;
    case Header::connection:
    case Header::proxy_connection:
      malformed_ |= !each_token(value, [&](std::string_view option) {
        if (header == Header::connection && same_word(option, "close")) facts_.keep_alive = false;
      });
      break;
    case Header::x_forwarded_for: forwarded_for_.push_back(place); break;
    default: break;
  }
  Part& first = headers_[static_cast<std::size_t>(header)];
  if (first.begin == 0) first = place;
}

void HeadParser::finish() {
  done_ = true;
  if (hosts_ > 1 || (hosts_ == 0 && !facts_.http10)) {
    refuse("The head must name exactly one Host, it names " + std::to_string(hosts_), "bad_request");
  } else if (facts_.chunked && (facts_.content_length || facts_.http10)) {
    refuse("Transfer-Encoding stands beside Content-Length or in HTTP/1.0", "bad_framing");
  } else if (malformed_) {
    refuse("The head is malformed", "bad_request");
  }
}

void HeadParser::refuse(std::string_view message, std::string_view reason) {
  if (status_.ok()) status_ = invalid(std::string(message), {}, std::string(reason));
}

HeadView HeadParser::view(std::string_view head) const {
  const auto value = [&](Header header) { return headers_[static_cast<std::size_t>(header)].of(head); };
  return {.method = method_.of(head),
          .target = target_.of(head),
          .authorization = value(Header::authorization),
          .x_api_key = value(Header::x_api_key),
          .content_type = value(Header::content_type),
          .if_none_match = value(Header::if_none_match),
          .accept_encoding = value(Header::accept_encoding),
          .host = value(Header::host),
          .host_optional = facts_.http10,
          .origin = value(Header::origin),
          .fetch_site = value(Header::fetch_site),
          .preflight_method = value(Header::preflight_method),
          .preflight_headers = value(Header::preflight_headers),
          .encoded = facts_.encoded,
          .request_id = value(Header::request_id)};
}

std::string HeadParser::forwarded_for(std::string_view head) const {
  std::string joined;
  for (const Part& line : forwarded_for_) {
    if (!joined.empty()) joined.push_back(',');
    joined.append(line.of(head));
  }
  return joined;
}

}  // namespace troupe::http
