// The methods of strings, dictionaries and lists. None changes its object: append(), update() and similar are
// not offered, as in Jinja's immutable sandbox.
#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "text/template/jinja/arguments.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"
#include "text/template/jinja/text_operations.h"
#include "text/template/jinja/unicode.h"

namespace troupe::jinja {
namespace {

template <bool kLeft, bool kRight>
Value strip_method(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("strip", arguments, {"chars"});
  return rendering.make(strip(rendering, *self.text(), parameters.optional_text(0), kLeft, kRight));
}

template <bool kFromRight>
Value split_method(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("split", arguments, {"sep", "maxsplit"});
  return rendering.make(
      split(rendering, *self.text(), parameters.optional_text(0), parameters.integer(1, -1), kFromRight));
}

Value splitlines(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("splitlines", arguments, {"keepends"});
  return rendering.make(split_lines(rendering, *self.text(), parameters.boolean(0, false)));
}

// Whether `text` starts (or ends) with the argument, or with any string of a tuple.
template <bool kStart>
Value affix(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters(kStart ? "startswith" : "endswith", arguments, {"prefix"});
  const std::string_view view = self.text()->view();
  auto matches = [&](const Value& value) {
    if (!value.text()) throw Error("startswith and endswith want a string or a tuple of strings");
    rendering.budget.touch(std::min(view.size(), value.text()->size()));
    return kStart ? view.starts_with(value.text()->view()) : view.ends_with(value.text()->view());
  };
  const Value& wanted = parameters.required(0);
  if (!wanted.list()) return Value(matches(wanted));
  return Value(std::any_of(wanted.list()->items.begin(), wanted.list()->items.end(), matches));
}

template <bool kStart>
Value remove_affix(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters(kStart ? "removeprefix" : "removesuffix", arguments, {"affix"});
  const Text& text = *self.text();
  const Text& affix_text = parameters.text(0);
  const bool has =
      kStart ? text.view().starts_with(affix_text.view()) : text.view().ends_with(affix_text.view());
  rendering.budget.touch(text.size());
  const std::size_t cut = has ? affix_text.size() : 0;
  return rendering.make(kStart ? text.slice(cut, text.size()) : text.slice(0, text.size() - cut));
}

template <Text (*kMap)(const Text&)>
Value map_method(Rendering& rendering, const Value& self, const PassedArguments&) {
  rendering.budget.transform(self.text()->size());
  return rendering.make(kMap(*self.text()));
}

// Python's title(): a letter after anything that is not one is upper, other letters are lower.
Text title_method(const Text& text) {
  bool inside = false;
  return unicode::map(text, [&](char32_t point) {
    const bool letter = unicode::is_alpha(point);
    return std::exchange(inside, letter) ? unicode::lower(point) : unicode::upper(point);
  });
}

Value replace_method(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("replace", arguments, {"old", "new", "count"});
  return rendering.make(
      replace(rendering, *self.text(), parameters.text(0), parameters.text(1), parameters.integer(2, -1)));
}

template <bool kFromRight>
Value find_method_of_text(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("find", arguments, {"sub"});
  const std::string_view view = self.text()->view();
  rendering.budget.touch(view.size());
  const std::string_view what = parameters.text(0).view();
  const std::size_t at = kFromRight ? find_last(view, what) : find_first(view, what);
  return at == view.npos ? Value(-1) : Value(utf8::length(view.substr(0, at)));
}

Value count_of_text(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("count", arguments, {"sub"});
  const std::string_view view = self.text()->view();
  const std::string_view sub = parameters.text(0).view();
  rendering.budget.touch(view.size());
  if (sub.empty()) return Value(utf8::length(view) + 1);
  std::size_t count = 0;
  for (std::size_t at = find_first(view, sub); at != view.npos; at = find_first(view, sub, at + sub.size())) {
    rendering.budget.step();
    ++count;
  }
  return Value(count);
}

Value join_strings(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("join", arguments, {"iterable"});
  Text out;
  const std::vector<Value> items = items_of(rendering, parameters.required(0));
  for (std::size_t i = 0; i < items.size(); ++i) {
    rendering.budget.step();
    if (!items[i].text())
      throw Error("join() wants strings, got '" + std::string(items[i].type_name()) + "'");
    rendering.pay_for_copy(*self.text());
    rendering.pay_for_copy(*items[i].text());
    if (i != 0) out.append(*self.text());
    out.append(*items[i].text());
  }
  return rendering.make(std::move(out));
}

// isdigit() and similar: true if there is a character and kIs holds for all.
template <bool (*kIs)(char32_t)>
Value all_are(Rendering& rendering, const Value& self, const PassedArguments&) {
  const std::string_view view = self.text()->view();
  rendering.budget.transform(view.size());
  for (std::size_t at = 0; at < view.size();) {
    const utf8::Step step = utf8::decode(view, at);
    if (!kIs(step.point)) return Value(false);
    at += step.bytes;
  }
  return Value(!view.empty());
}

template <bool (*kIs)(char32_t), bool (*kIsNot)(char32_t)>
Value case_is(Rendering& rendering, const Value& self, const PassedArguments&) {
  const std::string_view view = self.text()->view();
  rendering.budget.transform(view.size());
  bool some = false;
  for (std::size_t at = 0; at < view.size();) {
    const utf8::Step step = utf8::decode(view, at);
    if (kIsNot(step.point)) return Value(false);
    some = some || kIs(step.point);
    at += step.bytes;
  }
  return Value(some);
}

Value get(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("get", arguments, {"key", "default"});
  if (const Value* value = self.dict()->find(parameters.required(0), rendering.budget)) return *value;
  return parameters.get(1) ? *parameters.get(1) : Value(None{});
}

template <bool kKeys, bool kValues>
Value items(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("items", arguments, {});
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict()->items) {
    rendering.budget.step();
    out.push_back(kKeys && kValues ? rendering.make(std::vector<Value>{key, value}, true)
                  : kKeys          ? key
                                   : value);
  }
  return rendering.make(std::move(out));
}

Value index(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("index", arguments, {"value"});
  const auto& all = self.list()->items;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (equal(all[i], parameters.required(0), rendering.budget)) return Value(i);
  }
  throw Error("the value is not in the list");
}

Value count_of_list(Rendering& rendering, const Value& self, const PassedArguments& arguments) {
  const MatchedArguments parameters("count", arguments, {"value"});
  const auto& all = self.list()->items;
  return Value(static_cast<std::int64_t>(std::count_if(all.begin(), all.end(), [&](const Value& value) {
    return equal(value, parameters.required(0), rendering.budget);
  })));
}

struct Method {
  std::string_view name;
  Filter function;
};

constexpr Method kTextMethods[] = {
    {"capitalize", map_method<capitalize>},
    {"count", count_of_text},
    {"endswith", affix<false>},
    {"find", find_method_of_text<false>},
    {"isalnum", all_are<unicode::is_alnum>},
    {"isalpha", all_are<unicode::is_alpha>},
    {"isdecimal", all_are<unicode::is_digit>},
    {"isdigit", all_are<unicode::is_digit>},
    {"islower", case_is<unicode::is_lower, unicode::is_upper>},
    {"isnumeric", all_are<unicode::is_digit>},
    {"isspace", all_are<utf8::is_space>},
    {"isupper", case_is<unicode::is_upper, unicode::is_lower>},
    {"join", join_strings},
    {"lower", map_method<lower>},
    {"lstrip", strip_method<true, false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace_method},
    {"rfind", find_method_of_text<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", affix<true>},
    {"strip", strip_method<true, true>},
    {"title", map_method<title_method>},
    {"upper", map_method<upper>},
};
constexpr Method kDictMethods[] = {
    {"get", get},
    {"items", items<true, true>},
    {"keys", items<true, false>},
    {"values", items<false, true>},
};
constexpr Method kListMethods[] = {{"count", count_of_list}, {"index", index}};

template <std::size_t kSize>
Filter find_in(const Method (&methods)[kSize], std::string_view name) {
  const Method* found = std::find_if(std::begin(methods), std::end(methods),
                                     [&](const Method& method) { return method.name == name; });
  return found == std::end(methods) ? nullptr : found->function;
}

}  // namespace

bool is_method(std::string_view name) {
  return find_in(kTextMethods, name) || find_in(kDictMethods, name) || find_in(kListMethods, name);
}

Filter find_method(const Value& self, std::string_view name) {
  if (self.text()) return find_in(kTextMethods, name);
  if (self.dict()) return find_in(kDictMethods, name);
  return self.list() ? find_in(kListMethods, name) : nullptr;
}

}  // namespace troupe::jinja
