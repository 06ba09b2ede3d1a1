#include "config/wrap.h"

#include <algorithm>

namespace troupe::config {
namespace {

/// Characters, each taken as one column wide.
std::size_t columns_of(std::string_view utf8) {
  return static_cast<std::size_t>(
      std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string wrap_paragraph(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::size_t used = 0, at = 0;
  while (at < text.size()) {
    const std::size_t end =
        std::min(text.find(' ', std::min(text.find_first_not_of(' ', at), text.size())), text.size());
    const std::string_view piece = text.substr(at, end - at);  // blanks, then a word
    const std::size_t word = std::min(piece.find_first_not_of(' '), piece.size());
    if (used > indent && used + columns_of(piece) > width) {
      out += "\n" + std::string(indent, ' ') + std::string(piece.substr(word));
      used = indent + columns_of(piece.substr(word));
    } else {
      out += piece;
      used += columns_of(piece);
    }
    at = end;
  }
  return out;
}

}  // namespace

std::string wrap(std::string_view text, int indent, int width) {
  std::string out;
  while (true) {
    const std::size_t end = text.find('\n');
    out += wrap_paragraph(text.substr(0, end), static_cast<std::size_t>(indent),
                          static_cast<std::size_t>(width));
    if (end == std::string_view::npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace troupe::config
