#include "text/grammar/formats.h"

#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace troupe::grammar {
namespace {

constexpr std::int64_t kMostUnrolled = 64;
constexpr std::string_view kBudgetBegin = "^[^\\x1f";

std::string alternatives(const std::vector<std::string>& options) {
  std::string out = "(";
  for (const std::string& option : options) {
    if (out.size() > 1) out += '|';
    out += option;
  }
  return out + ")";
}

/// RFC 3339, proleptic Gregorian calendar, years 0001 to 9999.
std::string date() {
  const std::string year = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
  const std::string day = alternatives({"(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])",
                                        "(0[469]|11)-(0[1-9]|[12][0-9]|30)", "02-(0[1-9]|1[0-9]|2[0-8])"});
  const std::string leap_year = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
  return "(" + year + "-" + day + "|" + leap_year + "-02-29)";
}

std::string time() {
  return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
}

/// ISO 8601, units in order, without a gap between them.
std::string duration() {
  const std::string s = "[0-9]+S", m = "[0-9]+M(" + s + ")?", h = "[0-9]+H(" + m + ")?";
  const std::string clock = "T(" + h + "|" + m + "|" + s + ")";
  const std::string days = "[0-9]+D", months = "[0-9]+M(" + days + ")?", years = "[0-9]+Y(" + months + ")?";
  return "P((" + years + "|" + months + "|" + days + ")(" + clock + ")?|" + clock + "|[0-9]+W)";
}

std::string hostname() {
  const std::string label = "[A-Za-z0-9]([A-Za-z0-9\\-]{0,14}[A-Za-z0-9])?";
  return label + "(\\." + label + "){0,8}";
}

std::string email() { return "[A-Za-z0-9_+\\-]{1,24}(\\.[A-Za-z0-9_+\\-]{1,24}){0,3}@" + hostname(); }

std::string ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return "(" + byte + "\\.){3}" + byte;
}

std::string ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}";
  std::vector<std::string> forms = {"(" + group + ":){7}" + group, "(" + group + ":){1,7}:", "::"};
  for (int before = 0; before <= 6; ++before) {  // groups before and after "::", 7 together at most
    const std::string head = before == 0 ? ":" : "(" + group + ":){" + std::to_string(before) + "}";
    forms.push_back(head + "(:" + group + "){1," + std::to_string(7 - before) + "}");
  }
  return alternatives(forms);
}

std::string uuid() { return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"; }

/// RFC 3986 with a scheme; the host is a name or an IPv4 address.
std::string uri() {
  const std::string character = "([A-Za-z0-9_.~!$&'()*+,;=:@\\-]|%[0-9A-Fa-f]{2})";
  const std::string path = "(/" + character + "*)*";
  return "[a-z][a-z0-9+.\\-]*://" + hostname() + "(:[0-9]{1,4})?" + path + "(\\?(" + character +
         "|[/?])*)?(#(" + character + "|[/?])*)?";
}

const std::vector<std::pair<std::string, std::string>>& table() {
  static const std::vector<std::pair<std::string, std::string>> formats = {
      {"date", date()},         {"time", time()},   {"date-time", date() + "T" + time()},
      {"duration", duration()}, {"email", email()}, {"hostname", hostname()},
      {"ipv4", ipv4()},         {"ipv6", ipv6()},   {"uuid", uuid()},
      {"uri", uri()},
  };
  return formats;
}

}  // namespace

std::optional<std::string> pattern_of_format(std::string_view format) {
  for (const auto& [name, pattern] : table()) {
    if (name == format) return plain_pattern("^" + pattern + "$");
  }
  return std::nullopt;
}

bool is_describing_format(std::string_view format) { return format == "password" || format == "textarea"; }

std::string known_formats() {
  std::string names;
  for (const auto& [name, pattern] : table()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

std::string pattern_of_length(std::int64_t least, std::optional<std::int64_t> most) {
  if (!most || *most <= kMostUnrolled) {
    std::string out = "^[^\\x00-\\x1f]{" + std::to_string(least);
    if (most != least) out += "," + (most ? std::to_string(*most) : "");
    return out + "}$";
  }
  // The digits stand for control characters, which no string may hold anyway.
  std::string out(kBudgetBegin);
  for (const char digit : std::to_string(*most)) out += std::string("\\x0") + digit;
  return out + "]{" + std::to_string(least) + ",}$";
}

std::optional<std::int32_t> budget_of_pattern(std::string_view pattern) {
  if (!pattern.starts_with(kBudgetBegin)) return std::nullopt;
  std::int64_t most = 0;
  for (pattern.remove_prefix(kBudgetBegin.size()); pattern.starts_with("\\x0") && pattern.size() > 3;
       pattern.remove_prefix(4)) {
    most = most * 10 + (pattern[3] - '0');
    if (pattern[3] < '0' || pattern[3] > '9' || most > std::numeric_limits<std::int32_t>::max())
      return std::nullopt;
  }
  return pattern.starts_with("]{") ? std::optional<std::int32_t>(static_cast<std::int32_t>(most))
                                   : std::nullopt;
}

std::string plain_pattern(std::string_view pattern) {
  enum class Before { nothing, atom, quantifier };
  std::string out;
  Before before = Before::nothing;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    const utf8::Step step = utf8::decode(pattern, i);
    if (step.point >= 0x80) {
      char escape[16];
      std::snprintf(escape, sizeof escape, "\\u{%x}", static_cast<unsigned>(step.point));
      out += escape;
      before = Before::atom;
      i += static_cast<std::size_t>(step.bytes);
    } else if (c == '\\' && i + 1 < pattern.size()) {
      // An escaped character that is not ASCII is the character.
      if ((pattern[i + 1] & 0x80) == 0) (out += c) += pattern[i + 1];
      i += (pattern[i + 1] & 0x80) == 0 ? 2 : 1;
      before = Before::atom;
    } else if (in_class || c == '[') {
      in_class = c != ']' || !in_class;
      out += c;
      before = Before::atom;
      ++i;
    } else if (c == '?' && before != Before::nothing) {
      if (before == Before::atom)
        out += "{0,1}";  // behind a quantifier it means the shortest match: the same strings
      before = Before::quantifier;
      ++i;
    } else {
      out += c;
      const bool quantifier = c == '*' || c == '+' || c == '}';
      before = quantifier                         ? Before::quantifier
               : c == '(' || c == '|' || c == '^' ? Before::nothing
                                                  : Before::atom;
      ++i;
    }
  }
  return out;
}

}  // namespace troupe::grammar
