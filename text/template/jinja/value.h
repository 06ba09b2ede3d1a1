#pragma once
// The values a template computes with: Python's, as far as templates can tell.
//
// Values are immutable and share their contents; the only thing that changes is a namespace, which lives in
// the Rendering that made it. So values form no cycle, and one that outlives its template's variables frees
// itself.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/template/jinja/text.h"

namespace troupe::jinja {

class Budget;
class Rendering;
class Value;
struct PassedArguments;

struct None {};

/// A name or key that has no value. Prints as nothing, iterates as nothing, is false; anything else is an
/// error.
struct Undefined {
  std::shared_ptr<const std::string> what;  ///< for the error's sentence, perhaps null
};

struct List;
struct Dict;

/// Something with attributes or a call: a macro, a loop, a namespace, a function, a method.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type_name() const = 0;
  /// Undefined when there is no such attribute.
  virtual Value attribute(Rendering& rendering, std::string_view name) const;
  virtual bool callable() const { return false; }
  virtual Value call(Rendering& rendering, const PassedArguments& arguments) const;
  virtual int nesting() const { return 0; }  ///< of the values it holds
};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<const Object>;

class Value {
 public:
  Value() = default;  ///< undefined
  Value(None) : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(int i) : data_(std::int64_t{i}) {}
  Value(std::size_t n) : data_(static_cast<std::int64_t>(n)) {}
  Value(double d) : data_(d) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(ObjectPtr object) : data_(std::move(object)) {}
  Value(const char*) = delete;  // would silently become a bool

  /// Text that the engine or the template wrote.
  static Value trusted(std::string text) { return Value(Text(std::move(text), true)); }
  static Value undefined(std::string what);

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_number() const { return get<bool>() || get<std::int64_t>() || get<double>(); }
  const Text* text() const { return pointee<TextPtr>(); }
  const List* list() const { return pointee<ListPtr>(); }
  const Dict* dict() const { return pointee<DictPtr>(); }
  const Object* object() const { return pointee<ObjectPtr>(); }

  /// int or bool as an int64; nullptr-like false in .second otherwise.
  std::pair<std::int64_t, bool> as_int() const;
  double as_double() const;  ///< numbers only

  bool truthy() const;
  const char* type_name() const;  ///< Python's name of the type

  /// How many containers lie inside each other. Making one deeper than kMaxNesting throws, so that recursion
  /// over a value (comparing, printing, freeing) is bounded.
  int nesting() const;
  static constexpr int kMaxNesting = 200;

 private:
  template <class P>
  typename P::element_type* pointee() const {
    const P* p = std::get_if<P>(&data_);
    return p ? p->get() : nullptr;
  }

  std::variant<Undefined, None, bool, std::int64_t, double, TextPtr, ListPtr, DictPtr, ObjectPtr> data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;  ///< prints with parentheses
  int nesting = 0;     ///< set when it becomes a Value
};

/// Keys in the order of insertion. Lookup is linear: the dictionaries of a request are small, and a step is
/// charged for each key that is looked at.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int nesting = 0;  ///< set when it becomes a Value

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key, Budget& budget) const;
  void set(Value key, Value value, Budget& budget);
};

/// What a call passes.
struct PassedArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Python's ==: numbers across types, strings by bytes, containers by contents.
bool equal(const Value& a, const Value& b, Budget& budget);

/// Python's < for numbers, strings and lists; throws Error for types without an order.
bool less(const Value& a, const Value& b, Budget& budget);

/// Same object (`is sameas`), or the same immutable scalar.
bool same(const Value& a, const Value& b, Budget& budget);

}  // namespace troupe::jinja
