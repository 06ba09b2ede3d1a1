#include "text/template/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/text_operations.h"

namespace troupe::jinja {
namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    const auto* undefined = value->get<Undefined>();
    if (undefined && undefined->what) throw Error(*undefined->what);
  }
  throw Error("unsupported operand type(s) for " + std::string(op) + ": '" + a.type_name() + "' and '" +
              b.type_name() + "'");
}

void check_defined(const Value& value) {
  if (const auto* undefined = value.get<Undefined>()) {
    throw Error(undefined->what ? *undefined->what : "an undefined value is used");
  }
}

Value repeat(Rendering& rendering, const Value& sequence, std::int64_t count) {
  count = std::max<std::int64_t>(count, 0);
  const std::int64_t size = sequence.text() ? static_cast<std::int64_t>(sequence.text()->size())
                                            : static_cast<std::int64_t>(sequence.list()->items.size());
  std::int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) total = INT64_MAX / 32;
  rendering.budget.made(total * (sequence.text() ? 1 : static_cast<std::int64_t>(sizeof(Value))));
  if (total == 0) count = 0;
  rendering.budget.step(count);
  rendering.budget.touch(static_cast<std::size_t>(total));
  if (const Text* text = sequence.text()) {
    Text out;
    for (std::int64_t i = 0; i < count; ++i) out.append(*text);
    return Value(std::move(out));
  }
  List out{{}, sequence.list()->tuple};
  for (std::int64_t i = 0; i < count; ++i) {
    out.items.insert(out.items.end(), sequence.list()->items.begin(), sequence.list()->items.end());
  }
  return Value(std::move(out));
}

Value add(Rendering& rendering, const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    rendering.pay_for_copy(*a.text());
    rendering.pay_for_copy(*b.text());
    Text out = *a.text();
    out.append(*b.text());
    return Value(std::move(out));
  }
  if (a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
    std::vector<Value> out = a.list()->items;
    out.insert(out.end(), b.list()->items.begin(), b.list()->items.end());
    return rendering.make(std::move(out), a.list()->tuple);
  }
  unsupported("+", a, b);
}

std::int64_t floor_div(std::int64_t x, std::int64_t y) {
  return x / y - ((x % y != 0) && ((x < 0) != (y < 0)));
}

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  std::int64_t result = 1;
  if (base == 0 || base == 1 || exponent == 0) return Value(exponent == 0 ? std::int64_t{1} : base);
  if (base == -1) return Value(std::int64_t{exponent % 2 == 0 ? 1 : -1});
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) throw Error("an integer is larger than 64 bits");
  }
  return Value(result);
}

Value integer_binary(BinaryOp op, std::int64_t x, std::int64_t y) {
  std::int64_t result = 0;
  bool overflow = false;
  const bool divides = op == BinaryOp::divide || op == BinaryOp::floor_divide || op == BinaryOp::modulo;
  if (divides && y == 0) throw Error("division by zero");
  if (divides && op != BinaryOp::divide && y == -1) {  // the only quotient that can overflow
    if (op == BinaryOp::modulo) return Value(std::int64_t{0});
    overflow = __builtin_sub_overflow(std::int64_t{0}, x, &result);
  } else {
    switch (op) {
      case BinaryOp::add: overflow = __builtin_add_overflow(x, y, &result); break;
      case BinaryOp::subtract: overflow = __builtin_sub_overflow(x, y, &result); break;
      case BinaryOp::multiply: overflow = __builtin_mul_overflow(x, y, &result); break;
      case BinaryOp::divide: return Value(static_cast<double>(x) / static_cast<double>(y));
      case BinaryOp::floor_divide: result = floor_div(x, y); break;
      case BinaryOp::modulo: result = x - floor_div(x, y) * y; break;
      default: return power(x, y);
    }
  }
  if (overflow) throw Error("an integer is larger than 64 bits");
  return Value(result);
}

Value float_binary(BinaryOp op, double x, double y) {
  const bool divides = op == BinaryOp::divide || op == BinaryOp::floor_divide || op == BinaryOp::modulo;
  if (divides && y == 0) throw Error("float division by zero");
  switch (op) {
    case BinaryOp::add: return Value(x + y);
    case BinaryOp::subtract: return Value(x - y);
    case BinaryOp::multiply: return Value(x * y);
    case BinaryOp::divide: return Value(x / y);
    case BinaryOp::floor_divide: return Value(std::floor(x / y));
    case BinaryOp::modulo: {
      const double rest = std::fmod(x, y);
      return Value(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
    }
    default: return Value(std::pow(x, y));
  }
}

constexpr std::string_view spelling(BinaryOp op) {
  constexpr std::string_view kSpellings[] = {"+", "-", "*", "/", "//", "%", "** or pow()", "and", "or"};
  return kSpellings[static_cast<int>(op)];
}

// Index of an element counted from either end, or -1.
std::int64_t position(std::int64_t index, std::int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Filter method) : self_(std::move(self)), method_(method) {}
  const char* type_name() const override { return "method"; }
  bool callable() const override { return true; }
  int nesting() const override { return self_.nesting(); }
  Value call(Rendering& rendering, const PassedArguments& arguments) const override {
    return method_(rendering, self_, arguments);
  }

 private:
  const Value self_;
  const Filter method_;
};

}  // namespace

Value binary(Rendering& rendering, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const auto [x, x_int] = a.as_int();
    const auto [y, y_int] = b.as_int();
    return x_int && y_int ? integer_binary(op, x, y) : float_binary(op, a.as_double(), b.as_double());
  }
  if (op == BinaryOp::add) return add(rendering, a, b);
  if (op == BinaryOp::multiply) {
    const auto [x, x_int] = a.as_int();
    const auto [y, y_int] = b.as_int();
    if ((a.text() || a.list()) && y_int) return repeat(rendering, a, y);
    if ((b.text() || b.list()) && x_int) return repeat(rendering, b, x);
  }
  if (op == BinaryOp::modulo && a.text()) {
    const bool tuple = b.list() && b.list()->tuple;
    return rendering.make(
        format_percent(rendering, *a.text(), tuple ? b.list()->items : std::vector<Value>{b}));
  }
  unsupported(spelling(op), a, b);
}

Value unary(UnaryOp op, const Value& a) {
  if (op == UnaryOp::logical_not) return Value(!a.truthy());
  check_defined(a);
  if (!a.is_number()) throw Error("bad operand type for unary - or +: '" + std::string(a.type_name()) + "'");
  const auto [x, is_int] = a.as_int();
  if (!is_int) return Value(op == UnaryOp::negate ? -a.as_double() : a.as_double());
  if (op == UnaryOp::negate && x == INT64_MIN) throw Error("an integer is larger than 64 bits");
  return Value(op == UnaryOp::negate ? -x : x);
}

bool compare(Rendering& rendering, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::equal: return equal(a, b, rendering.budget);
    case CompareOp::not_equal: return !equal(a, b, rendering.budget);
    case CompareOp::in: return contains(rendering, b, a);
    case CompareOp::not_in: return !contains(rendering, b, a);
    default: break;
  }
  check_defined(a);
  check_defined(b);
  switch (op) {
    case CompareOp::less: return less(a, b, rendering.budget);
    case CompareOp::greater: return less(b, a, rendering.budget);
    // Not the negation of the other two, because of NaN.
    case CompareOp::less_equal: return less(a, b, rendering.budget) || equal(a, b, rendering.budget);
    default: return less(b, a, rendering.budget) || equal(a, b, rendering.budget);
  }
}

bool contains(Rendering& rendering, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    check_defined(item);
    if (!item.text()) {
      throw Error("'in <string>' requires string as left operand, not " + std::string(item.type_name()));
    }
    rendering.budget.touch(text->size());
    return find_first(text->view(), item.text()->view()) != std::string_view::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& other) { return equal(item, other, rendering.budget); });
  }
  if (const Dict* dict = container.dict()) return dict->find(item, rendering.budget) != nullptr;
  if (container.is_undefined()) return false;
  throw Error("argument of type '" + std::string(container.type_name()) + "' is not iterable");
}

Value attribute(Rendering& rendering, const Value& object, std::string_view name) {
  check_defined(object);
  if (const Filter method = find_method(object, name)) {
    return Value(std::make_shared<const BoundMethod>(object, method));
  }
  if (const Dict* dict = object.dict()) {
    rendering.budget.step(static_cast<std::int64_t>(dict->items.size() / 8));
    if (const Value* value = dict->find(name)) return *value;
  }
  if (object.object()) return object.object()->attribute(rendering, name);
  return Value::undefined("'" + std::string(object.type_name()) + " object' has no attribute '" +
                          std::string(name) + "'");
}

Value item(Rendering& rendering, const Value& object, const Value& index) {
  check_defined(object);
  const auto [number, is_int] = index.as_int();
  if (const List* list = object.list(); list && is_int) {
    const std::int64_t at = position(number, static_cast<std::int64_t>(list->items.size()));
    if (at >= 0) return list->items[static_cast<std::size_t>(at)];
  } else if (const Text* text = object.text(); text && is_int) {
    rendering.budget.touch(text->size());
    const std::int64_t at = position(number, static_cast<std::int64_t>(utf8::length(text->view())));
    if (at >= 0) {
      const std::size_t begin = utf8::offset_of(text->view(), static_cast<std::size_t>(at));
      const auto bytes = static_cast<std::size_t>(utf8::decode(text->view(), begin).bytes);
      return rendering.make(text->slice(begin, begin + bytes));
    }
  } else if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(index, rendering.budget)) return *value;
  }
  if (index.text()) return attribute(rendering, object, index.text()->view());
  return Value::undefined(std::string(object.type_name()) + " object has no element " +
                          std::string(to_text(index, rendering.budget).view()));
}

Value slice(Rendering& rendering, const Value& object, const Value* start, const Value* stop,
            const Value* step) {
  check_defined(object);
  const Text* text = object.text();
  if (!text && !object.list())
    return Value::undefined("'" + std::string(object.type_name()) + "' object cannot be sliced");
  auto bound = [](const Value* value, std::int64_t fallback) {
    if (!value || value->is_none()) return fallback;
    const auto [number, is_int] = value->as_int();
    if (!is_int) throw Error("slice indices must be integers or None");
    return number;
  };
  // Clamps the step to a length beyond any list, so that the sums below cannot overflow.
  const std::int64_t by = std::clamp<std::int64_t>(bound(step, 1), -(1ll << 40), 1ll << 40);
  if (by == 0) throw Error("slice step cannot be zero");
  if (text) rendering.budget.touch(text->size());
  const auto size =
      static_cast<std::int64_t>(text ? utf8::length(text->view()) : object.list()->items.size());
  auto clip = [&](std::int64_t at) {
    if (at < 0) at = at < -size ? -1 : at + size;
    return std::clamp<std::int64_t>(at, by > 0 ? 0 : -1, by > 0 ? size : size - 1);
  };
  const bool has_start = start && !start->is_none();
  const bool has_stop = stop && !stop->is_none();
  const std::int64_t from = has_start ? clip(bound(start, 0)) : by > 0 ? 0 : size - 1;
  const std::int64_t to = has_stop ? clip(bound(stop, 0)) : by > 0 ? size : -1;
  if (!text) rendering.budget.step(size / 64);
  if (text && by == 1) {
    if (to <= from) return rendering.make(Text());
    const std::size_t begin = utf8::offset_of(text->view(), static_cast<std::size_t>(from));
    const std::size_t end = utf8::offset_of(text->view(), static_cast<std::size_t>(to));
    return rendering.make(text->slice(begin, end));
  }
  const std::vector<Value> all = text ? characters(rendering, *text) : object.list()->items;
  std::vector<Value> picked;
  for (std::int64_t at = from; by > 0 ? at < to : at > to; at += by) {
    rendering.budget.step();
    picked.push_back(all[static_cast<std::size_t>(at)]);
  }
  if (!text) return rendering.make(std::move(picked), object.list()->tuple);
  Text out;
  for (const Value& character : picked) out.append(*character.text());
  return rendering.make(std::move(out));
}

std::vector<Value> characters(Rendering& rendering, const Text& text) {
  std::vector<Value> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto bytes = static_cast<std::size_t>(utf8::decode(text.view(), at).bytes);
    rendering.budget.step();
    out.push_back(rendering.make(text.slice(at, at + bytes)));
    at += bytes;
  }
  return out;
}

std::vector<Value> items_of(Rendering& rendering, const Value& value) {
  if (const List* list = value.list()) {
    rendering.budget.made(static_cast<std::int64_t>(list->items.size() * sizeof(Value)));
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    std::vector<Value> keys;
    rendering.budget.made(static_cast<std::int64_t>(dict->items.size() * sizeof(Value)));
    for (const auto& [key, item] : dict->items) keys.push_back(key);
    return keys;
  }
  if (const Text* text = value.text()) return characters(rendering, *text);
  if (value.is_undefined()) return {};
  throw Error("'" + std::string(value.type_name()) + "' object is not iterable");
}

std::int64_t length_of(Rendering& rendering, const Value& value) {
  if (value.list()) return static_cast<std::int64_t>(value.list()->items.size());
  if (value.dict()) return static_cast<std::int64_t>(value.dict()->items.size());
  if (value.text()) {
    rendering.budget.touch(value.text()->size());
    return static_cast<std::int64_t>(utf8::length(value.text()->view()));
  }
  if (value.is_undefined()) return 0;
  throw Error("object of type '" + std::string(value.type_name()) + "' has no len()");
}

}  // namespace troupe::jinja
