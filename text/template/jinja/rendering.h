#pragma once
// The state of one rendering: its variables, its budget and what it frees at the end. Used by one thread.
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/jinja/budget.h"
#include "text/template/jinja/value.h"

namespace troupe::jinja {

/// Variables of one block. Names are views of the template's tree or of the render call's arguments, both of
/// which outlive the rendering.
class Scope {
 public:
  explicit Scope(std::shared_ptr<const Scope> parent) : parent_(std::move(parent)) {}

  /// In this scope or one around it; nullptr when there is none.
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);

 private:
  std::vector<std::pair<std::string_view, Value>> variables_;
  const std::shared_ptr<const Scope> parent_;
};

/// namespace(): the one value that changes. Owned by its rendering, so that a namespace that holds itself
/// leaks nothing.
struct NamespaceData {
  Dict attributes;
};

/// The data behind a value that namespace() returned; nullptr for other values.
NamespaceData* namespace_data(const Value& value);

class Rendering {
 public:
  Rendering(const RenderLimits& limits, std::shared_ptr<Scope> context)
      : budget(limits), limits_(limits), scope_(std::move(context)) {}

  Budget budget;
  int line = 0;  ///< of the statement or call that runs, for messages

  const RenderLimits& limits() const { return limits_; }
  Scope& scope() { return *scope_; }
  const std::shared_ptr<Scope>& scope_ptr() const { return scope_; }

  /// A variable, a global function, or undefined.
  Value lookup(const std::string& name) const;

  /// Makes `scope` the innermost one while this object lives.
  class Enter {
   public:
    Enter(Rendering& rendering, std::shared_ptr<Scope> scope)
        : rendering_(rendering), saved_(std::exchange(rendering.scope_, std::move(scope))) {}
    explicit Enter(Rendering& rendering) : Enter(rendering, std::make_shared<Scope>(rendering.scope_)) {}
    ~Enter() { rendering_.scope_ = std::move(saved_); }
    Enter(const Enter&) = delete;
    Enter& operator=(const Enter&) = delete;

   private:
    Rendering& rendering_;
    std::shared_ptr<Scope> saved_;
  };

  /// Makes values of new texts and lists and charges the budget.
  Value make(Text text);
  Value make(std::vector<Value> items, bool tuple = false);
  Value make(Dict dict);

  /// Before a text is appended to one that is being made.
  void pay_for_copy(const Text& text) {
    budget.made(static_cast<std::int64_t>(text.footprint()));
    budget.touch(text.size());
  }

  /// Appends to a block's output, within the limit of the output.
  void print(Text& out, const Text& text);

  NamespaceData& new_namespace() { return namespaces_.emplace_back(); }

 private:
  const RenderLimits& limits_;
  std::shared_ptr<Scope> scope_;
  std::deque<NamespaceData> namespaces_;
};

/// A function that the engine offers by name.
using Function = Value (*)(Rendering& rendering, const PassedArguments& arguments);
using Filter = Value (*)(Rendering& rendering, const Value& input, const PassedArguments& arguments);
using Test = bool (*)(Rendering& rendering, const Value& input, const PassedArguments& arguments);

/// The tables; nullptr when there is no such name.
Function find_function(std::string_view name);
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
Filter find_method(const Value& self, std::string_view name);
/// True if some type of value has a method of this name.
bool is_method(std::string_view name);

Value apply_filter(Rendering& rendering, std::string_view name, const Value& input,
                   const PassedArguments& arguments);
bool apply_test(Rendering& rendering, std::string_view name, const Value& input,
                const PassedArguments& arguments);

/// Calls a macro, function or method; Error when the value is not callable.
Value call(Rendering& rendering, const Value& callee, const PassedArguments& arguments);

}  // namespace troupe::jinja
