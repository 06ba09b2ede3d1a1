// Python's printf-style formatting of the conversions that templates use.
#include <algorithm>
#include <cstdio>

#include "base/utf8.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"

namespace troupe::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1000;

struct Conversion {
  bool left = false, zero = false, plus = false, blank = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 0;
};

std::int64_t number_at(std::string_view format, std::size_t& at) {
  std::int64_t number = 0;
  while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
    number = number * 10 + (format[at++] - '0');
    if (number > kMaxWidth) throw Error("a width in a format is at most 1000");
  }
  return number;
}

Conversion conversion_at(std::string_view format, std::size_t& at) {
  Conversion out;
  for (; at < format.size() && std::string_view("-0+ #").find(format[at]) != std::string_view::npos; ++at) {
    out.left = out.left || format[at] == '-';
    out.zero = out.zero || format[at] == '0';
    out.plus = out.plus || format[at] == '+';
    out.blank = out.blank || format[at] == ' ';
  }
  out.width = number_at(format, at);
  if (at < format.size() && format[at] == '.') out.precision = number_at(format, ++at);
  if (at == format.size()) throw Error("incomplete format");
  out.type = format[at++];
  return out;
}

std::string number_text(const Conversion& conversion, const Value& value) {
  if (!value.is_number()) {
    throw Error("%" + std::string(1, conversion.type) + " format: a number is required, not " +
                value.type_name());
  }
  std::string out;
  const bool integer = std::string_view("diuxXo").find(conversion.type) != std::string_view::npos;
  const double number = value.as_double();
  if (integer) {
    const auto [whole, is_int] = value.as_int();
    if (!is_int && !(number > -9.2e18 && number < 9.2e18))
      throw Error("a number is too large for its format");
    const std::int64_t n = is_int ? whole : static_cast<std::int64_t>(number);
    const std::uint64_t magnitude = n < 0 ? 0 - static_cast<std::uint64_t>(n) : static_cast<std::uint64_t>(n);
    char digits[32];
    const char* format = conversion.type == 'x'   ? "%lx"
                         : conversion.type == 'X' ? "%lX"
                         : conversion.type == 'o' ? "%lo"
                                                  : "%lu";
    std::snprintf(digits, sizeof(digits), format, magnitude);
    out = n < 0 ? "-" + std::string(digits) : digits;
  } else {
    char digits[1500];
    const char format[] = {'%', '.', '*', conversion.type, '\0'};
    std::snprintf(digits, sizeof(digits), format,
                  static_cast<int>(conversion.precision < 0 ? 6 : conversion.precision), number);
    out = digits;
  }
  if (out[0] != '-' && (conversion.plus || conversion.blank)) out.insert(0, 1, conversion.plus ? '+' : ' ');
  const auto width = static_cast<std::size_t>(conversion.width);
  if (conversion.zero && !conversion.left && out.size() < width) {
    out.insert(out[0] == '-' || out[0] == '+' || out[0] == ' ' ? 1 : 0, width - out.size(), '0');
  }
  return out;
}

Text converted(Rendering& rendering, const Conversion& conversion, const Value& value) {
  switch (conversion.type) {
    case 's': {
      const Text text = to_text(value, rendering.budget);
      if (conversion.precision < 0) return text;
      return text.slice(0, utf8::offset_of(text.view(), static_cast<std::size_t>(conversion.precision)));
    }
    case 'r': {
      // repr(): as the list [value] is printed, without the brackets.
      const Text listed = to_text(Value(List{{value}}), rendering.budget);
      return listed.slice(1, listed.size() - 1);
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': return Text(number_text(conversion, value), true);
    default: throw Error("unsupported format character '" + std::string(1, conversion.type) + "'");
  }
}

}  // namespace

Text format_percent(Rendering& rendering, const Text& format, const std::vector<Value>& arguments) {
  const std::string_view view = format.view();
  Text out;
  std::size_t used = 0;
  for (std::size_t at = 0; at < view.size();) {
    const std::size_t percent = std::min(view.find('%', at), view.size());
    out.append(format.slice(at, percent));
    if (percent == view.size()) break;
    at = percent + 1;
    const Conversion conversion = conversion_at(view, at);
    if (conversion.type == '%') {
      out.append(format.slice(percent, percent + 1));
      continue;
    }
    if (used == arguments.size()) throw Error("not enough arguments for format string");
    rendering.budget.step();
    const Text text = converted(rendering, conversion, arguments[used++]);
    rendering.budget.touch(text.size());
    const auto size = static_cast<std::int64_t>(utf8::length(text.view()));
    const std::string padding(static_cast<std::size_t>(std::max<std::int64_t>(conversion.width - size, 0)),
                              ' ');
    rendering.budget.made(static_cast<std::int64_t>(text.size() + padding.size()));
    if (!conversion.left) out.append(padding, true);
    out.append(text);
    if (conversion.left) out.append(padding, true);
  }
  if (used != arguments.size()) throw Error("not all arguments converted during string formatting");
  return out;
}

}  // namespace troupe::jinja
