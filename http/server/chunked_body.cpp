#include "http/server/chunked_body.h"

#include <algorithm>
#include <charconv>

#include "http/server/request_head.h"

namespace troupe::http {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7F;
}

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
}

/// Takes a token off the front; empty when there is none.
std::string_view take_token(std::string_view& text) {
  std::size_t size = 0;
  while (size < text.size() && is_token(text.substr(size, 1))) ++size;
  const std::string_view token = text.substr(0, size);
  text.remove_prefix(size);
  return token;
}

/// Takes a quoted string off the front. False when there is none, or it has no end.
bool take_quoted(std::string_view& text) {
  if (!text.starts_with('"')) return false;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

/// RFC 9112's chunk-ext: any number of ";name" or ";name=value", with blanks around the two signs.
bool are_extensions(std::string_view text) {
  while (!text.empty()) {
    skip_blanks(text);
    if (!text.starts_with(';')) return false;
    text.remove_prefix(1);
    skip_blanks(text);
    if (take_token(text).empty()) return false;
    std::string_view rest = text;
    skip_blanks(rest);
    if (!rest.starts_with('=')) continue;
    rest.remove_prefix(1);
    skip_blanks(rest);
    if (!take_quoted(rest) && take_token(rest).empty()) return false;
    text = rest;
  }
  return true;
}

/// A trailer must not say how the body is framed, or what becomes of the connection.
bool is_trailer(std::string_view line) {
  const auto header = split_header(line);
  if (!header) return false;
  switch (header_of(header->name)) {
    case Header::connection:
    case Header::content_length:
    case Header::proxy_connection:
    case Header::transfer_encoding: return false;
    default: return true;
  }
}

}  // namespace

ChunkedBody::Progress ChunkedBody::read(std::string_view bytes, std::size_t& consumed, std::string& body) {
  consumed = 0;
  for (;;) {
    const std::string_view rest = bytes.substr(consumed);
    if (state_ == State::data) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size()));
      if (n == 0) return Progress::need_more;
      body.append(rest.substr(0, n));
      consumed += n;
      left_ -= n;
      if (left_ == 0) state_ = State::data_end;
      return Progress::data;
    }
    if (state_ == State::data_end) {
      constexpr std::string_view kEnd = "\r\n";
      if (!kEnd.starts_with(rest.substr(0, kEnd.size()))) return Progress::malformed;
      if (rest.size() < kEnd.size()) return Progress::need_more;
      consumed += kEnd.size();
      state_ = State::size;
      continue;
    }
    const std::size_t end = rest.find('\n', searched_);
    searched_ = 0;
    if (lines_ + std::min(end, rest.size()) >= kMaxLines) return Progress::too_long;
    if (end == rest.npos) {
      searched_ = rest.size();
      return Progress::need_more;
    }
    if (end == 0 || rest[end - 1] != '\r') return Progress::malformed;
    lines_ += end + 1;
    consumed += end + 1;
    const Progress line = read_line(rest.substr(0, end - 1));
    if (line != Progress::need_more) return line;
  }
}

/// need_more: the body goes on behind the line.
ChunkedBody::Progress ChunkedBody::read_line(std::string_view line) {
  if (std::any_of(line.begin(), line.end(), is_control)) return Progress::malformed;
  if (state_ == State::trailer) {
    if (line.empty()) return Progress::complete;
    return is_trailer(line) ? Progress::need_more : Progress::malformed;
  }
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
  if (error != std::errc() || !are_extensions(line.substr(static_cast<std::size_t>(end - line.data()))))
    return Progress::malformed;
  if (left_ == 0) {
    state_ = State::trailer;
  } else {
    state_ = State::data;
    lines_ = 0;
  }
  return Progress::need_more;
}

}  // namespace troupe::http
