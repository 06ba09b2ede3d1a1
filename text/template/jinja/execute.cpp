#include <algorithm>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"

namespace troupe::jinja {
namespace {

/// A macro or the body of a call block. Its free variables are those of the scope it is defined in. It holds
/// that scope weakly: a scope that holds its own macro must not keep itself alive.
class MacroValue : public Object {
 public:
  MacroValue(const Macro& macro, const std::shared_ptr<Scope>& scope) : macro_(macro), scope_(scope) {}
  const char* type_name() const override { return "macro"; }
  bool callable() const override { return true; }

  Value attribute(Rendering& rendering, std::string_view name) const override {
    return name == "name" ? Value::trusted(macro_.name) : Object::attribute(rendering, name);
  }

  Value call(Rendering& rendering, const PassedArguments& arguments) const override {
    const std::shared_ptr<Scope> around = scope_.lock();
    if (!around) throw Error("macro '" + macro_.name + "' is called outside of the block that defines it");
    auto scope = std::make_shared<Scope>(around);
    const Rendering::Enter enter(rendering, scope);
    bind(rendering, *scope, arguments);
    Text out;
    run_block(macro_.body, rendering, out);
    return rendering.make(std::move(out));
  }

 private:
  void bind(Rendering& rendering, Scope& scope, const PassedArguments& arguments) const {
    const auto& parameters = macro_.parameters;
    if (arguments.positional.size() > parameters.size()) {
      throw Error("macro '" + macro_.name + "' takes not more than " + std::to_string(parameters.size()) +
                  " argument(s)");
    }
    for (const auto& [name, value] : arguments.named) {
      const bool known = std::any_of(parameters.begin(), parameters.end(),
                                     [&, n = &name](const auto& parameter) { return parameter.first == *n; });
      if (name == "caller") {
        scope.set("caller", value);
      } else if (!known) {
        throw Error("macro '" + macro_.name + "' takes no keyword argument '" + name + "'");
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, fallback] = parameters[i];
      const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&, n = &name](const auto& argument) { return argument.first == *n; });
      if (i < arguments.positional.size()) {
        scope.set(name, arguments.positional[i]);
      } else if (named != arguments.named.end()) {
        scope.set(name, named->second);
      } else if (fallback) {
        scope.set(name, fallback->value(rendering));
      } else {
        scope.set(name, Value::undefined("parameter '" + name + "' was not provided"));
      }
    }
  }

  const Macro& macro_;
  const std::weak_ptr<Scope> scope_;
};

/// The variable `loop`.
class LoopVariable : public Object {
 public:
  explicit LoopVariable(std::vector<Value> loop_items) : items(std::move(loop_items)) {
    for (const Value& item : items) nesting_ = std::max(nesting_, item.nesting() + 1);
    if (nesting_ > Value::kMaxNesting) throw LimitError("values are nested more than 200 deep");
  }
  const char* type_name() const override { return "loop"; }
  int nesting() const override { return nesting_; }

  Value attribute(Rendering& rendering, std::string_view name) const override {
    const std::size_t size = items.size();
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "revindex") return Value(size - index);
    if (name == "revindex0") return Value(size - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == size);
    if (name == "length") return Value(size);
    if (name == "depth") return Value(1);  // the depth of recursive loops, which are not offered
    if (name == "depth0") return Value(0);
    if (name == "previtem")
      return index > 0 ? items[index - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem")
      return index + 1 < size ? items[index + 1] : Value::undefined("there is no next item");
    if (name == "cycle") return Value(std::make_shared<const Cycle>(index));
    return Object::attribute(rendering, name);
  }

  const std::vector<Value> items;
  std::size_t index = 0;

 private:
  class Cycle : public Object {
   public:
    explicit Cycle(std::size_t index) : index_(index) {}
    const char* type_name() const override { return "method"; }
    bool callable() const override { return true; }
    Value call(Rendering&, const PassedArguments& arguments) const override {
      if (arguments.positional.empty()) throw Error("no items for cycling given");
      return arguments.positional[index_ % arguments.positional.size()];
    }

   private:
    const std::size_t index_;
  };

  int nesting_ = 0;
};

void assign(Rendering& rendering, Scope& scope, const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const std::vector<Value> parts = items_of(rendering, value);
    if (parts.size() != target.parts.size()) {
      throw Error("cannot unpack " + std::to_string(parts.size()) + " values into " +
                      std::to_string(target.parts.size()) + " names",
                  target.line);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(rendering, scope, target.parts[i], parts[i]);
    return;
  }
  if (target.attribute.empty()) return scope.set(target.name, value);
  NamespaceData* data = namespace_data(rendering.lookup(target.name));
  if (!data) throw Error("cannot assign attribute on non-namespace object", target.line);
  data->attributes.set(Value::trusted(target.attribute), value, rendering.budget);
}

Text filtered(Rendering& rendering, Text text, const std::vector<Application>& filters) {
  if (filters.empty()) return text;
  Value value = rendering.make(std::move(text));
  for (const Application& filter : filters) {
    const PassedArguments arguments = filter.arguments.values(rendering);
    rendering.line = filter.line;
    value = apply_filter(rendering, filter.name, value, arguments);
  }
  return to_text(value, rendering.budget);
}

}  // namespace

Flow Statement::run(Rendering& rendering, Text& out) const {
  rendering.budget.step();
  rendering.line = line_;
  return execute(rendering, out);
}

Flow run_block(const StatementBlock& block, Rendering& rendering, Text& out) {
  const Budget::Level level(rendering.budget);
  for (const StatementPtr& statement : block) {
    const Flow flow = statement->run(rendering, out);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Flow Data::execute(Rendering& rendering, Text& out) const {
  rendering.print(out, Text(text, true));
  return Flow::next;
}

Flow Print::execute(Rendering& rendering, Text& out) const {
  const Value value = expression->value(rendering);
  if (value.text()) {
    rendering.print(out, *value.text());
  } else {
    rendering.print(out, to_text(value, rendering.budget));
  }
  return Flow::next;
}

Flow If::execute(Rendering& rendering, Text& out) const {
  for (const auto& [condition, body] : branches) {
    if (condition->value(rendering).truthy()) return run_block(body, rendering, out);
  }
  return run_block(otherwise, rendering, out);
}

Flow For::execute(Rendering& rendering, Text& out) const {
  std::vector<Value> selected = items_of(rendering, items->value(rendering));
  if (condition) {
    std::vector<Value> kept;
    for (Value& item : selected) {
      const Rendering::Enter enter(rendering);
      assign(rendering, rendering.scope(), target, item);
      if (condition->value(rendering).truthy()) kept.push_back(std::move(item));
    }
    selected = std::move(kept);
  }
  if (selected.empty()) return run_block(otherwise, rendering, out);

  const auto loop = std::make_shared<LoopVariable>(std::move(selected));
  bool completed =
      false;  // an iteration ran to its end: as Jinja has it, the else block is for when none did
  for (; loop->index < loop->items.size(); ++loop->index) {
    rendering.budget.step();
    const Rendering::Enter enter(rendering);
    rendering.scope().set("loop", Value(ObjectPtr(loop)));
    assign(rendering, rendering.scope(), target, loop->items[loop->index]);
    const Flow flow = run_block(body, rendering, out);
    completed = completed || flow == Flow::next;
    if (flow == Flow::break_loop) break;
  }
  // After the loop the object still works, as if at the last item.
  if (loop->index == loop->items.size()) --loop->index;
  return completed ? Flow::next : run_block(otherwise, rendering, out);
}

Flow Set::execute(Rendering& rendering, Text&) const {
  Value value;
  if (expression) {
    value = expression->value(rendering);
  } else {
    Text text;
    {
      const Rendering::Enter enter(rendering);
      run_block(body, rendering, text);
    }
    value = rendering.make(filtered(rendering, std::move(text), filters));
  }
  assign(rendering, rendering.scope(), target, value);
  return Flow::next;
}

Flow Macro::execute(Rendering& rendering, Text&) const {
  rendering.scope().set(name, Value(std::make_shared<const MacroValue>(*this, rendering.scope_ptr())));
  return Flow::next;
}

Flow CallBlock::execute(Rendering& rendering, Text& out) const {
  const Value function = callee->value(rendering);
  PassedArguments values = arguments.values(rendering);
  values.named.emplace_back("caller",
                            Value(std::make_shared<const MacroValue>(*caller, rendering.scope_ptr())));
  rendering.line = line();
  rendering.print(out, to_text(call(rendering, function, values), rendering.budget));
  return Flow::next;
}

Flow FilterBlock::execute(Rendering& rendering, Text& out) const {
  Text text;
  {
    const Rendering::Enter enter(rendering);
    run_block(body, rendering, text);
  }
  rendering.print(out, filtered(rendering, std::move(text), filters));
  return Flow::next;
}

Flow With::execute(Rendering& rendering, Text& out) const {
  auto scope = std::make_shared<Scope>(rendering.scope_ptr());
  // The values are evaluated in the outer scope: "with a = 1, b = a" sees the outer a.
  for (const auto& [variable, expression] : variables)
    scope->set(variable.name, expression->value(rendering));
  const Rendering::Enter enter(rendering, scope);
  return run_block(body, rendering, out);
}

Flow Jump::execute(Rendering&, Text&) const { return flow; }

}  // namespace troupe::jinja
