#include "http/api/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

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

}  // namespace

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
      const utf8::Step step = utf8::decode(text, i);
      const auto bytes = static_cast<std::size_t>(step.bytes);
      if (step.kind != utf8::SequenceKind::character) {
        out.append(text, run, i - run).append(utf8::kReplacement);
        run = i + bytes;
      }
      i += bytes;
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

void append_float(std::string& out, float value) {
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_logprob(std::string& out, float value) {
  if (!std::isfinite(value) || value < -9999.0f) {
    out.append("-9999.0");
    return;
  }
  const std::size_t before = out.size();
  append_float(out, value);
  if (out.find_first_of(".e", before) == out.npos) out.append(".0");
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
