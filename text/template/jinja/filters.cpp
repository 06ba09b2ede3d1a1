// The table of filters, and the filters of a single value. Those of sequences are in sequence_filters.cpp.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/utf8.h"
#include "text/template/jinja/arguments.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"
#include "text/template/jinja/sequence_filters.h"
#include "text/template/jinja/text_operations.h"
#include "text/template/jinja/unicode.h"

namespace troupe::jinja {
namespace {

Value default_filter(Rendering&, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(parameters.boolean(1, false) && !input.truthy())) return input;
  return parameters.get(0) ? *parameters.get(0) : Value::trusted("");
}

template <Text (*kMap)(const Text&)>
Value map_text(Rendering& rendering, const Value& input, const PassedArguments&) {
  const Text text = to_text(input, rendering.budget);
  rendering.budget.transform(text.size());
  return rendering.make(kMap(text));
}

// Jinja's title filter, unlike the method, starts words only after blanks and opening brackets.
Text title_filter(const Text& text) {
  bool start = true;
  return unicode::map(text, [&](char32_t point) {
    const char32_t mapped = start ? unicode::upper(point) : unicode::lower(point);
    start =
        utf8::is_space(point) || point == '-' || point == '(' || point == '{' || point == '[' || point == '<';
    return mapped;
  });
}

Value trim(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("trim", arguments, {"chars"});
  return rendering.make(
      strip(rendering, to_text(input, rendering.budget), parameters.optional_text(0), true, true));
}

Value string_filter(Rendering& rendering, const Value& input, const PassedArguments&) {
  return rendering.make(to_text(input, rendering.budget));
}

Value identity(Rendering&, const Value& input, const PassedArguments&) { return input; }

Value replace_filter(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("replace", arguments, {"old", "new", "count"});
  const Text from = to_text(parameters.required(0), rendering.budget);
  const Text to = to_text(parameters.required(1), rendering.budget);
  return rendering.make(
      replace(rendering, to_text(input, rendering.budget), from, to, parameters.integer(2, -1)));
}

Value escape(Rendering& rendering, const Value& input, const PassedArguments&) {
  static constexpr std::pair<std::string_view, const char*> kEntities[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  Text text = to_text(input, rendering.budget);
  for (const auto& [character, entity] : kEntities) {
    text = replace(rendering, text, Text(std::string(character), true), Text(entity, true), -1);
  }
  return rendering.make(std::move(text));
}

Value format_filter(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  if (!arguments.named.empty()) throw Error("format() by names is not offered");
  return rendering.make(format_percent(rendering, to_text(input, rendering.budget), arguments.positional));
}

Value indent(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("indent", arguments, {"width", "first", "blank"});
  Text margin;
  if (parameters.get(0) && parameters.get(0)->text()) {
    margin = *parameters.get(0)->text();
  } else {
    const std::int64_t width = parameters.integer(0, 4);
    if (width > 1000) throw Error("indent() takes a width of at most 1000");
    margin = Text(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '), true);
  }
  Text text = to_text(input, rendering.budget);
  text.append("\n", true);  // so that a last empty line counts as one
  const std::vector<Value> lines = split_lines(rendering, text, false);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text();
    rendering.budget.made(1);
    rendering.pay_for_copy(margin);
    if (i != 0) out.append("\n", true);
    if (i == 0 ? parameters.boolean(1, false) : !line.empty() || parameters.boolean(2, false))
      out.append(margin);
    out.append(line);
  }
  return rendering.make(std::move(out));
}

Value tojson(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("tojson", arguments,
                                    {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = parameters.boolean(0, false);
  if (const Value* margin = parameters.get(1); margin && !margin->is_none()) {
    style.pretty = true;
    style.item_separator = std::string(",");
    const std::int64_t width = margin->text() ? 0 : parameters.integer(1, 0);
    if (width > 100) throw Error("tojson() takes an indent of at most 100");
    style.indent = margin->text()
                       ? std::string(margin->text()->view())
                       : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  if (const Value* separators = parameters.get(2); separators && !separators->is_none()) {
    const std::vector<Value> parts = items_of(rendering, *separators);
    if (parts.size() != 2 || !parts[0].text() || !parts[1].text())
      throw Error("tojson() wants two separators");
    style.item_separator = parts[0].text()->view();
    style.key_separator = parts[1].text()->view();
  }
  style.sort_keys = parameters.boolean(3, false);
  return rendering.make(to_json(input, style, rendering.budget));
}

Value abs_filter(Rendering&, const Value& input, const PassedArguments&) {
  if (!input.is_number()) throw Error("bad operand type for abs(): '" + std::string(input.type_name()) + "'");
  const auto [number, is_int] = input.as_int();
  if (!is_int) return Value(std::fabs(input.as_double()));
  return number < 0 ? unary(UnaryOp::negate, input) : Value(number);
}

// A text as a number; false unless all of it is one.
template <class Number, class... Base>
bool parse_number(Rendering& rendering, const Text& text, Number& number, Base... base) {
  const Text stripped = strip(rendering, text, nullptr, true, true);
  std::string_view digits = stripped.view();
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number, base...);
  return parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
}

Value int_filter(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("int", arguments, {"default", "base"});
  Value fallback(0);
  if (parameters.get(0)) fallback = *parameters.get(0);
  const std::int64_t base = parameters.integer(1, 10);
  if (base < 2 || base > 36) return fallback;
  if (const auto [number, is_int] = input.as_int(); is_int) return Value(number);
  double number = 0;
  if (const Text* text = input.text()) {
    std::int64_t whole = 0;
    if (parse_number(rendering, *text, whole, static_cast<int>(base))) return Value(whole);
    if (!parse_number(rendering, *text, number)) return fallback;
  } else if (const double* d = input.get<double>()) {
    number = *d;
  } else {
    return fallback;
  }
  if (!(std::fabs(number) < 9.2e18)) return fallback;
  return Value(static_cast<std::int64_t>(number));
}

Value float_filter(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("float", arguments, {"default"});
  if (input.is_number()) return Value(input.as_double());
  double number = 0;
  if (input.text() && parse_number(rendering, *input.text(), number)) return Value(number);
  return parameters.get(0) ? *parameters.get(0) : Value(0.0);
}

Value round_filter(Rendering&, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("round", arguments, {"precision", "method"});
  if (!input.is_number()) throw Error("round() wants a number, got '" + std::string(input.type_name()) + "'");
  const std::string_view method = parameters.get(1) ? parameters.text(1).view() : "common";
  if (method == "common" && input.as_int().second) return Value(input.as_int().first);
  const double scale = std::pow(10.0, static_cast<double>(parameters.integer(0, 0)));
  const double scaled = input.as_double() * scale;
  if (method == "ceil") return Value(std::ceil(scaled) / scale);
  if (method == "floor") return Value(std::floor(scaled) / scale);
  if (method != "common") throw Error("round() knows the methods common, ceil and floor");
  return Value(std::nearbyint(scaled) / scale);  // halves to even, as Python
}

Value word_count(Rendering& rendering, const Value& input, const PassedArguments&) {
  return Value(split(rendering, to_text(input, rendering.budget), nullptr, -1, false).size());
}

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
constexpr NamedFilter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", map_text<capitalize>},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape},
    {"escape", escape},
    {"float", float_filter},
    {"format", format_filter},
    {"indent", indent},
    {"int", int_filter},
    {"lower", map_text<lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", identity},
    {"string", string_filter},
    {"title", map_text<title_filter>},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", map_text<upper>},
    {"wordcount", word_count},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const NamedFilter* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                          [&](const NamedFilter& f) { return f.name == name; });
  return found == std::end(kFilters) ? find_sequence_filter(name) : found->filter;
}

}  // namespace troupe::jinja
