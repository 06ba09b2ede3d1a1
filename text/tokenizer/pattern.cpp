#include "text/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace troupe {
namespace {

constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";

// Spells out \s and \S outside brackets, and \s inside, by kSpaces.
std::string spell_out_spaces(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char escaped = expression[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kSpaces) : '[' + std::string(kSpaces) + ']';
      } else if (escaped == 'S' && !in_class) {
        out += "[^" + std::string(kSpaces) + ']';
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct MatchData {
  explicit MatchData(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
  MatchData(const MatchData&) = delete;
  pcre2_match_data* data;
};

}  // namespace

void Pattern::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Pattern> Pattern::compile(const std::string& expression) {
  const std::string spelled = spell_out_spaces(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return invalid("the regular expression " + expression.substr(0, 200) +
                   " is not understood: " + reinterpret_cast<const char*>(message));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without a JIT the interpreter is used
  return Pattern(code);
}

void Pattern::find_all(std::string_view text, Ranges& out) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData match(code);
  if (!match.data) return;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    // The text was checked as a whole; checking it again at each match would make the search quadratic.
    int found = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.data, nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found =
          pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.data, nullptr);
    }
    if (found < 0) return;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.data);
    if (range[1] > range[0]) {
      out.emplace_back(range[0], range[1]);
      at = range[1];
    } else {
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    }
  }
}

}  // namespace troupe
