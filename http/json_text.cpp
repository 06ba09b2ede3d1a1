#include "http/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace troupe::http {
namespace {

// 0: copy as it is. 1: control character, \u00XX. 2: start of a multi-byte (or invalid) sequence.
// Otherwise the letter that follows the backslash.
constexpr std::array<char, 256> make_actions() {
  std::array<char, 256> actions{};
  for (int c = 0; c < 0x20; ++c) actions[c] = 1;
  for (int c = 0x80; c < 0x100; ++c) actions[c] = 2;
  actions['"'] = '"';
  actions['\\'] = '\\';
  actions['\b'] = 'b';
  actions['\f'] = 'f';
  actions['\n'] = 'n';
  actions['\r'] = 'r';
  actions['\t'] = 't';
  return actions;
}
constexpr std::array<char, 256> kActions = make_actions();
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

constexpr bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// Bounds of the second byte by the first (Unicode, table 3-7); `bytes` 0: not a leading byte.
struct Lead {
  std::size_t bytes;
  unsigned char low;
  unsigned char high;
};
constexpr Lead lead_of(unsigned char c) {
  if (c < 0xC2) return {0, 0, 0};
  if (c < 0xE0) return {2, 0x80, 0xBF};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c < 0xF0) return {3, 0x80, 0xBF};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c < 0xF4) return {4, 0x80, 0xBF};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

struct Sequence {
  std::size_t bytes;  // at least 1
  bool valid;         // false: `bytes` is the maximal invalid part
};

Sequence sequence_at(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at(0) < 0x80) return {1, true};
  const Lead lead = lead_of(at(0));
  if (lead.bytes == 0 || text.size() < 2 || at(1) < lead.low || at(1) > lead.high) return {1, false};
  for (std::size_t i = 2; i < lead.bytes; ++i) {
    if (i >= text.size() || !is_continuation(at(i))) return {i, false};
  }
  return {lead.bytes, true};
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const Sequence sequence = sequence_at(text);
  return sequence.valid ? sequence.bytes : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Sequence sequence = sequence_at(text);
    if (!sequence.valid) return false;
    text.remove_prefix(sequence.bytes);
  }
  return true;
}

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  std::size_t run = 0;  // start of what can be copied as it is
  std::size_t i = 0;
  while (i < text.size()) {
    const auto c = static_cast<unsigned char>(text[i]);
    const char action = kActions[c];
    if (action == 0) {
      ++i;
      continue;
    }
    if (action == 2) {
      const Sequence sequence = sequence_at(text.substr(i));
      if (!sequence.valid) {
        out.append(text, run, i - run).append(kReplacement);
        run = i + sequence.bytes;
      }
      i += sequence.bytes;
      continue;
    }
    out.append(text, run, i - run);
    if (action == 1) {
      out.append("\\u00").push_back(kHex[c >> 4]);
      out.push_back(kHex[c & 15]);
    } else {
      out.push_back('\\');
      out.push_back(action);
    }
    run = ++i;
  }
  out.append(text, run, text.size() - run);
  out.push_back('"');
}

void append_integer(std::string& out, std::int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

void append_logprob(std::string& out, float value) {
  if (!std::isfinite(value) || value < -9999.0f) {
    out.append("-9999.0");
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, end - digits);
  out.append(text);
  if (text.find_first_of(".e") == text.npos) out.append(".0");
}

void append_ids(std::string& out, std::span<const TokenId> ids) {
  out.push_back('[');
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out.push_back(',');
    append_integer(out, ids[i]);
  }
  out.push_back(']');
}

}  // namespace troupe::http
