#pragma once
// What Python's string methods know about characters.
#include <string>

#include "text/template/jinja/text.h"

namespace troupe::jinja::unicode {

char32_t upper(char32_t point);
char32_t lower(char32_t point);
bool is_alpha(char32_t point);
bool is_digit(char32_t point);
bool is_alnum(char32_t point);
bool is_upper(char32_t point);
bool is_lower(char32_t point);

/// True if repr() prints it unescaped.
bool is_printable(char32_t point);

/// Replaces each character by f(character), which gets its trust. f returns kCapitalSharpS for U+00DF: its
/// capital is the two letters "SS".
inline constexpr char32_t kCapitalSharpS = 0x110000;  ///< no character
template <class F>
Text map(const Text& text, F&& f);

}  // namespace troupe::jinja::unicode

#include "base/utf8.h"

template <class F>
troupe::jinja::Text troupe::jinja::unicode::map(const Text& text, F&& f) {
  Text out;
  text.for_each_run([&](std::string_view run, bool trusted) {
    std::string mapped;
    mapped.reserve(run.size());
    for (std::size_t at = 0; at < run.size();) {
      const utf8::Step step = utf8::decode(run, at);
      const char32_t point = f(step.point);
      if (point == kCapitalSharpS) {
        mapped += "SS";
      } else {
        utf8::append(mapped, point);
      }
      at += step.bytes;
    }
    out.append(mapped, trusted);
  });
  return out;
}
