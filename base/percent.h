#pragma once
// Bytes that a URL spells as a percent sign and two hexadecimal digits.
#include <cstddef>
#include <string_view>

namespace troupe {

/// The byte whose escape of three characters begins at `at`; -1 when none does.
constexpr int escaped_byte(std::string_view text, std::size_t at) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (at >= text.size() || text[at] != '%' || text.size() - at < 3) return -1;
  const int high = digit(text[at + 1]), low = digit(text[at + 2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace troupe
