#include "base/utf8.h"

namespace troupe::utf8 {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

Step decode(std::string_view text, std::size_t at) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {SequenceKind::character, lead, 1};
  const int size = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 0;
  const int total = size != 0 ? size : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (total == 0) return {SequenceKind::invalid, 0xFFFD, 1};

  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t point = lead & (0xFF >> (total + 1));
  for (int i = 1; i < total; ++i) {
    if (at + i >= text.size()) return {SequenceKind::incomplete, 0xFFFD, i};
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : is_continuation(byte(i));
    if (!fits) return {SequenceKind::invalid, 0xFFFD, i};
    point = point << 6 | (byte(i) & 0x3F);
  }
  return {SequenceKind::character, point, total};
}

void append(std::string& out, char32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xC0 | point >> 6);
    out += static_cast<char>(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    out += static_cast<char>(0xE0 | point >> 12);
    out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | point >> 18);
    out += static_cast<char>(0x80 | (point >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (point & 0x3F));
  }
}

std::size_t length(std::string_view text) {
  std::size_t count = 0;
  for (unsigned char byte : text) count += !is_continuation(byte);
  return count;
}

std::size_t offset_of(std::string_view text, std::size_t count) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!is_continuation(static_cast<unsigned char>(text[at])) && count-- == 0) break;
  }
  return at;
}

bool is_valid(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Step step = decode(text, at);
    if (step.kind != SequenceKind::character) return false;
    at += step.bytes;
  }
  return true;
}

std::string to_valid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Step step = decode(text, at);
    out += step.kind == SequenceKind::character ? text.substr(at, step.bytes) : kReplacement;
    at += step.bytes;
  }
  return out;
}

bool is_space(char32_t point) {
  if (point <= 0x20) return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20);
  return point == 0x85 || point == 0xA0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200A) ||
         point == 0x2028 || point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

}  // namespace troupe::utf8
