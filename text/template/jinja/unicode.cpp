#include "text/template/jinja/unicode.h"

#include <locale.h>
#include <wctype.h>

namespace troupe::jinja::unicode {
namespace {

// The C library's Unicode tables, independent of the process's locale.
locale_t tables() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

wint_t wide(char32_t point) { return static_cast<wint_t>(point); }

}  // namespace

char32_t upper(char32_t point) {
  if (point < 0x80) return point >= 'a' && point <= 'z' ? point - 32 : point;
  if (point == 0xDF) return kCapitalSharpS;
  return tables() ? towupper_l(wide(point), tables()) : point;
}

char32_t lower(char32_t point) {
  if (point < 0x80) return point >= 'A' && point <= 'Z' ? point + 32 : point;
  return tables() ? towlower_l(wide(point), tables()) : point;
}

bool is_digit(char32_t point) { return point >= '0' && point <= '9'; }
bool is_alnum(char32_t point) { return is_digit(point) || is_alpha(point); }
bool is_upper(char32_t point) { return lower(point) != point; }
bool is_lower(char32_t point) { return upper(point) != point; }

bool is_alpha(char32_t point) {
  if (point < 0x80) return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
  return tables() && iswalpha_l(wide(point), tables());
}

bool is_printable(char32_t point) {
  if (point < 0x7F) return point >= 0x20;
  const bool format = point == 0xAD || (point >= 0x200B && point <= 0x200F) ||
                      (point >= 0x202A && point <= 0x202E) || (point >= 0x2060 && point <= 0x206F) ||
                      point == 0xFEFF || (point >= 0xE000 && point <= 0xF8FF) ||
                      (point >= 0xE0000 && point <= 0xE0FFF) || point >= 0xF0000;
  return !format && !utf8::is_space(point) && tables() && iswprint_l(wide(point), tables());
}

}  // namespace troupe::jinja::unicode
