#include "base/logfmt.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>

namespace troupe {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// True for U+0080 … U+009F (two bytes of UTF-8): terminals interpret them as escape sequences.
bool is_wide_control(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]) == 0xc2 && at + 1 < text.size() &&
         static_cast<unsigned char>(text[at + 1]) >= 0x80 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
}

void append_hex(std::string& line, char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  line += kDigits[byte >> 4];
  line += kDigits[byte & 15];
}

void append_escaped(std::string& line, char c) {
  switch (c) {
    case '"': line += "\\\""; return;
    case '\\': line += "\\\\"; return;
    case '\n': line += "\\n"; return;
    case '\r': line += "\\r"; return;
    case '\t': line += "\\t"; return;
    default: break;
  }
  if (!is_control(c)) {
    line += c;
    return;
  }
  line += "\\x";
  append_hex(line, c);
}

template <class Number>
void append_number(std::string& line, Number value) {
  std::array<char, 40> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc{}) line.append(digits.data(), end);
}

/// The date to the second. Cached: a thread formats it at most once a second.
std::string_view date_of(std::time_t second) {
  thread_local std::time_t last = -1;
  thread_local std::array<char, 32> text;
  thread_local std::size_t length = 0;
  if (second != last) {
    std::tm parts{};
    ::gmtime_r(&second, &parts);
    length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
    last = second;
  }
  return {text.data(), length};
}

}  // namespace

void append_time(std::string& line, std::chrono::system_clock::time_point when) {
  const auto micros = std::chrono::floor<std::chrono::microseconds>(when.time_since_epoch()).count();
  line += date_of(static_cast<std::time_t>(micros / 1'000'000));
  std::array<char, 16> fraction;
  std::snprintf(fraction.data(), fraction.size(), ".%06dZ", static_cast<int>(micros % 1'000'000));
  line += fraction.data();
}

void append_logfmt_value(std::string& line, std::string_view value, std::size_t max_bytes) {
  bool cut = false;
  if (value.size() > max_bytes) {
    std::size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0) == 0x80) --end;
    value = value.substr(0, end);
    cut = true;
  }
  bool quoted = value.empty();
  for (std::size_t i = 0; i < value.size() && !quoted; ++i) {
    const char c = value[i];
    quoted = c == ' ' || c == '"' || c == '=' || c == '\\' || is_control(c) || is_wide_control(value, i);
  }
  if (!quoted) {
    line += value;
  } else {
    line += '"';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (is_wide_control(value, i)) {
        line += "\\u00";
        append_hex(line, value[++i]);
      } else {
        append_escaped(line, value[i]);
      }
    }
  }
  if (cut) line += "…";
  if (quoted) line += '"';
}

std::string format_event(std::chrono::system_clock::time_point when, LogLevel level, std::string_view actor,
                         std::string_view event, const LogField* fields, std::size_t count,
                         std::size_t max_value_bytes) {
  std::string line;
  line.reserve(160);
  append_time(line, when);
  line.append(" level=").append(to_string(level)).append(" actor=");
  append_logfmt_value(line, actor, max_value_bytes);
  line += " event=";
  append_logfmt_value(line, event, max_value_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const LogField& field = fields[i];
    line += ' ';
    line += field.key;
    line += '=';
    switch (field.kind) {
      case LogField::Kind::text: append_logfmt_value(line, field.text, max_value_bytes); break;
      case LogField::Kind::integer: append_number(line, field.integer); break;
      case LogField::Kind::number: append_number(line, field.number); break;
      case LogField::Kind::flag: line += field.integer != 0 ? "true" : "false"; break;
    }
  }
  return line;
}

}  // namespace troupe
