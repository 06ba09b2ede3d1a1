#include "text/template/jinja/sequence_filters.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "text/template/jinja/arguments.h"
#include "text/template/jinja/ast.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/text_operations.h"

namespace troupe::jinja {
namespace {

// "a.b.0" of an element, as the attribute argument of map, sort, join and others means it.
Value path(Rendering& rendering, Value value, const Value& attribute_path) {
  if (!attribute_path.text()) return item(rendering, value, attribute_path);
  std::string_view rest = attribute_path.text()->view();
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    std::int64_t number = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number =
        !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    rendering.budget.step();
    value = item(rendering, value, is_number ? Value(number) : Value::trusted(std::string(part)));
    if (part.size() == rest.size()) return value;
    rest.remove_prefix(part.size() + 1);
  }
}

// The value that elements are compared by: the one at `attribute`, in lower case unless case_sensitive.
Value sort_key(Rendering& rendering, const Value& value, const Value* attribute, bool case_sensitive) {
  Value key = attribute && !attribute->is_none() ? path(rendering, value, *attribute) : value;
  if (!key.text() || case_sensitive) return key;
  rendering.budget.transform(key.text()->size());
  return rendering.make(lower(*key.text()));
}

using Keyed = std::pair<Value, Value>;  // key, element

void sort_keyed(Rendering& rendering, std::vector<Keyed>& keyed, bool reverse) {
  // A comparison may throw; a stable merge sort then leaves valid values.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(b.first, a.first, rendering.budget) : less(a.first, b.first, rendering.budget);
  });
}

Value sort(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> keyed;
  for (Value& value : items_of(rendering, input)) {
    Value key = sort_key(rendering, value, parameters.get(2), parameters.boolean(1, false));
    keyed.emplace_back(std::move(key), std::move(value));
  }
  sort_keyed(rendering, keyed, parameters.boolean(0, false));
  std::vector<Value> out;
  for (Keyed& entry : keyed) out.push_back(std::move(entry.second));
  return rendering.make(std::move(out));
}

Value dictsort(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!input.dict()) throw Error("dictsort() wants a dictionary");
  const std::string_view by = parameters.get(1) ? parameters.text(1).view() : "key";
  if (by != "key" && by != "value") throw Error("dictsort() sorts by \"key\" or \"value\"");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : input.dict()->items) {
    keyed.emplace_back(sort_key(rendering, by == "key" ? key : value, nullptr, parameters.boolean(0, false)),
                       rendering.make(std::vector<Value>{key, value}, true));
  }
  sort_keyed(rendering, keyed, parameters.boolean(2, false));
  std::vector<Value> out;
  for (Keyed& entry : keyed) out.push_back(std::move(entry.second));
  return rendering.make(std::move(out));
}

template <bool kMax>
Value extreme(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  Value best = Value::undefined("no item, because the sequence was empty");
  Value best_key;
  bool first = true;
  for (Value& value : items_of(rendering, input)) {
    Value key = sort_key(rendering, value, parameters.get(1), parameters.boolean(0, false));
    if (first || (kMax ? less(best_key, key, rendering.budget) : less(key, best_key, rendering.budget))) {
      best = std::move(value);
      best_key = std::move(key);
    }
    first = false;
  }
  return best;
}

Value unique(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> keys;
  std::vector<Value> out;
  for (Value& value : items_of(rendering, input)) {
    Value key = sort_key(rendering, value, parameters.get(1), parameters.boolean(0, false));
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& k) { return equal(k, key, rendering.budget); });
    if (seen) continue;
    keys.push_back(std::move(key));
    out.push_back(std::move(value));
  }
  return rendering.make(std::move(out));
}

Value join(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("join", arguments, {"d", "attribute"});
  const Text separator = parameters.get(0) ? to_text(*parameters.get(0), rendering.budget) : Text();
  const Value* attribute_path = parameters.get(1);
  Text out;
  bool first = true;
  for (const Value& value : items_of(rendering, input)) {
    rendering.budget.step();
    rendering.pay_for_copy(separator);
    if (!first) out.append(separator);
    first = false;
    const bool whole = !attribute_path || attribute_path->is_none();
    const Text text = to_text(whole ? value : path(rendering, value, *attribute_path), rendering.budget);
    rendering.pay_for_copy(text);
    out.append(text);
  }
  return rendering.make(std::move(out));
}

Value sum(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("sum", arguments, {"attribute", "start"});
  const Value* attribute_path = parameters.get(0);
  Value total = parameters.get(1) ? *parameters.get(1) : Value(0);
  for (const Value& value : items_of(rendering, input)) {
    const bool whole = !attribute_path || attribute_path->is_none();
    total = binary(rendering, BinaryOp::add, total, whole ? value : path(rendering, value, *attribute_path));
  }
  return total;
}

Value length(Rendering& rendering, const Value& input, const PassedArguments&) {
  return Value(length_of(rendering, input));
}

Value list(Rendering& rendering, const Value& input, const PassedArguments&) {
  return rendering.make(items_of(rendering, input));
}

Value first(Rendering& rendering, const Value& input, const PassedArguments&) {
  const std::vector<Value> all = items_of(rendering, input);
  return all.empty() ? Value::undefined("no first item, sequence was empty") : all.front();
}

Value last(Rendering& rendering, const Value& input, const PassedArguments&) {
  const std::vector<Value> all = items_of(rendering, input);
  return all.empty() ? Value::undefined("no last item, sequence was empty") : all.back();
}

Value reverse(Rendering& rendering, const Value& input, const PassedArguments&) {
  std::vector<Value> all = items_of(rendering, input);
  std::reverse(all.begin(), all.end());
  if (!input.text()) return rendering.make(std::move(all));
  Text out;
  for (const Value& character : all) out.append(*character.text());
  return rendering.make(std::move(out));
}

Value items(Rendering& rendering, const Value& input, const PassedArguments&) {
  if (input.is_undefined()) return rendering.make(std::vector<Value>{});
  if (!input.dict()) throw Error("Can only get item pairs from a mapping.");
  return call(rendering, attribute(rendering, input, "items"), {});
}

Value attr(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("attr", arguments, {"name"});
  if (input.object()) return input.object()->attribute(rendering, parameters.text(0).view());
  return Value::undefined("'" + std::string(input.type_name()) + " object' has no attribute '" +
                          std::string(parameters.text(0).view()) + "'");
}

Value batch(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  const MatchedArguments parameters("batch", arguments, {"linecount", "fill_with"});
  const std::int64_t size = parameters.integer(0, 0);
  if (size < 1 || size > 100'000) throw Error("batch() wants a size from 1 to 100000");
  std::vector<Value> out;
  std::vector<Value> row;
  for (Value& value : items_of(rendering, input)) {
    row.push_back(std::move(value));
    if (static_cast<std::int64_t>(row.size()) == size) out.push_back(rendering.make(std::exchange(row, {})));
  }
  if (!row.empty()) {
    const Value* fill = parameters.get(1);
    rendering.budget.step(size);
    if (fill && !fill->is_none()) row.resize(static_cast<std::size_t>(size), *fill);
    out.push_back(rendering.make(std::move(row)));
  }
  return rendering.make(std::move(out));
}

// map() and select() make an empty list of every value that is false, none and 0 among them.
std::vector<Value> items_if_true(Rendering& rendering, const Value& value) {
  return value.truthy() ? items_of(rendering, value) : std::vector<Value>();
}

Value map(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {  // map(attribute="a.b", default=x)
    const MatchedArguments parameters("map", arguments, {"attribute", "default"});
    for (Value& value : items_if_true(rendering, input)) {
      Value mapped = path(rendering, std::move(value), parameters.required(0));
      out.push_back(mapped.is_undefined() && parameters.get(1) ? *parameters.get(1) : std::move(mapped));
    }
    return rendering.make(std::move(out));
  }
  PassedArguments rest = arguments;  // map("filter", its arguments …)
  rest.positional.erase(rest.positional.begin());
  if (!arguments.positional.front().text()) throw Error("map() wants the name of a filter");
  const std::string_view filter = arguments.positional.front().text()->view();
  const Budget::Level level(rendering.budget);
  for (const Value& value : items_if_true(rendering, input)) {
    rendering.budget.step();
    out.push_back(apply_filter(rendering, filter, value, rest));
  }
  return rendering.make(std::move(out));
}

// select, reject, selectattr, rejectattr: [attribute,] test name, its arguments. Without a test: truth.
template <bool kKeep, bool kAttribute>
Value choose(Rendering& rendering, const Value& input, const PassedArguments& arguments) {
  PassedArguments rest = arguments;
  auto take = [&rest] {
    Value front = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return front;
  };
  if (kAttribute && rest.positional.empty()) throw Error("selectattr and rejectattr want an attribute");
  const Value attribute_path = kAttribute ? take() : Value();
  const Value test = rest.positional.empty() ? Value() : take();
  if (!test.is_undefined() && !test.text()) throw Error("select and reject want the name of a test");
  const Budget::Level level(rendering.budget);
  std::vector<Value> out;
  for (Value& value : items_if_true(rendering, input)) {
    rendering.budget.step();
    const Value subject = kAttribute ? path(rendering, value, attribute_path) : value;
    const bool holds =
        test.text() ? apply_test(rendering, test.text()->view(), subject, rest) : subject.truthy();
    if (holds == kKeep) out.push_back(std::move(value));
  }
  return rendering.make(std::move(out));
}

struct NamedSequenceFilter {
  std::string_view name;
  Filter filter;
};
constexpr NamedSequenceFilter kSequenceFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length},
    {"dictsort", dictsort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"reverse", reverse},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  const NamedSequenceFilter* found =
      std::find_if(std::begin(kSequenceFilters), std::end(kSequenceFilters),
                   [&](const NamedSequenceFilter& f) { return f.name == name; });
  return found == std::end(kSequenceFilters) ? nullptr : found->filter;
}

}  // namespace troupe::jinja
