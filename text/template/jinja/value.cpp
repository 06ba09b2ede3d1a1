#include "text/template/jinja/value.h"

#include <algorithm>

#include "text/template/jinja/budget.h"

namespace troupe::jinja {

Value Object::attribute(Rendering&, std::string_view name) const {
  return Value::undefined("'" + std::string(type_name()) + "' object has no attribute '" + std::string(name) +
                          "'");
}

Value Object::call(Rendering&, const PassedArguments&) const {
  throw Error("'" + std::string(type_name()) + "' object is not callable");
}

namespace {

int around(int inner) {
  if (inner >= Value::kMaxNesting) throw LimitError("values are nested more than 200 deep");
  return inner + 1;
}

}  // namespace

Value::Value(List list) {
  int inner = 0;
  for (const Value& item : list.items) inner = std::max(inner, item.nesting());
  list.nesting = around(inner);
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  int inner = 0;
  for (const auto& [key, item] : dict.items) inner = std::max({inner, key.nesting(), item.nesting()});
  dict.nesting = around(inner);
  data_ = std::make_shared<const Dict>(std::move(dict));
}

int Value::nesting() const {
  if (list()) return list()->nesting;
  if (dict()) return dict()->nesting;
  return object() ? object()->nesting() : 0;
}

Value Value::undefined(std::string what) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(what))});
}

std::pair<std::int64_t, bool> Value::as_int() const {
  if (const bool* b = get<bool>()) return {*b, true};
  if (const std::int64_t* i = get<std::int64_t>()) return {*i, true};
  return {0, false};
}

double Value::as_double() const {
  if (const double* d = get<double>()) return *d;
  return static_cast<double>(as_int().first);
}

bool Value::truthy() const {
  if (const bool* b = get<bool>()) return *b;
  if (const std::int64_t* i = get<std::int64_t>()) return *i != 0;
  if (const double* d = get<double>()) return *d != 0;
  if (text()) return !text()->empty();
  if (list()) return !list()->items.empty();
  if (dict()) return !dict()->items.empty();
  return object() != nullptr;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (get<bool>()) return "bool";
  if (get<std::int64_t>()) return "int";
  if (get<double>()) return "float";
  if (text()) return "str";
  if (list()) return list()->tuple ? "tuple" : "list";
  if (dict()) return "dict";
  return object()->type_name();
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k.text() && k.text()->view() == key) return &v;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  for (const auto& [k, v] : items) {
    if (equal(k, key, budget)) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  for (auto& [k, v] : items) {
    if (equal(k, key, budget)) {
      v = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

bool equal_items(const Dict& a, const Dict& b, Budget& budget) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = b.find(item.first, budget);
           return other && equal(item.second, *other, budget);
         });
}

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    const auto [x, x_int] = a.as_int();
    const auto [y, y_int] = b.as_int();
    return x_int && y_int ? x == y : a.as_double() == b.as_double();
  }
  if (a.text() && b.text()) {
    if (a.text()->size() == b.text()->size()) budget.touch(a.text()->size());
    return *a.text() == *b.text();
  }
  if (a.list() && b.list()) {
    return a.list() == b.list() ||
           (a.list()->tuple == b.list()->tuple && equal_items(a.list()->items, b.list()->items, budget));
  }
  if (a.dict() && b.dict()) return a.dict() == b.dict() || equal_items(*a.dict(), *b.dict(), budget);
  if (a.object() && b.object()) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    const auto [x, x_int] = a.as_int();
    const auto [y, y_int] = b.as_int();
    return x_int && y_int ? x < y : a.as_double() < b.as_double();
  }
  // Byte order of UTF-8 is the order of code points.
  if (a.text() && b.text()) {
    budget.touch(std::min(a.text()->size(), b.text()->size()));
    return a.text()->view() < b.text()->view();
  }
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    const auto& x = a.list()->items;
    const auto& y = b.list()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return less(x[i], y[i], budget);
    }
    return x.size() < y.size();
  }
  throw Error("'<' not supported between instances of '" + std::string(a.type_name()) + "' and '" +
              b.type_name() + "'");
}

bool same(const Value& a, const Value& b, Budget& budget) {
  if (a.list() || b.list()) return a.list() == b.list();
  if (a.dict() || b.dict()) return a.dict() == b.dict();
  return std::string_view(a.type_name()) == b.type_name() && equal(a, b, budget);
}

}  // namespace troupe::jinja
