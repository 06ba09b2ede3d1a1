#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [known, value] : scope->variables_) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables_.emplace_back(name, std::move(value));
}

namespace {

class Builtin : public Object {
 public:
  explicit Builtin(Function function) : function_(function) {}
  const char* type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Rendering& rendering, const PassedArguments& arguments) const override {
    return function_(rendering, arguments);
  }

 private:
  const Function function_;
};

}  // namespace

Value Rendering::lookup(const std::string& name) const {
  if (const Value* value = scope_->find(name)) return *value;
  if (const Function function = find_function(name)) return Value(std::make_shared<const Builtin>(function));
  return Value::undefined("'" + name + "' is undefined");
}

Value Rendering::make(Text text) {
  budget.made(static_cast<std::int64_t>(text.footprint() + sizeof(Text)));
  return Value(std::move(text));
}

Value Rendering::make(std::vector<Value> items, bool tuple) {
  budget.made(static_cast<std::int64_t>(items.size() * sizeof(Value) + sizeof(List)));
  return Value(List{std::move(items), tuple});
}

Value Rendering::make(Dict dict) {
  budget.made(static_cast<std::int64_t>(dict.items.size() * 2 * sizeof(Value) + sizeof(Dict)));
  return Value(std::move(dict));
}

void Rendering::print(Text& out, const Text& text) {
  if (static_cast<std::int64_t>(out.size() + text.size()) > limits_.output_bytes) {
    throw LimitError("the chat template prints more than " + std::to_string(limits_.output_bytes) + " bytes");
  }
  budget.made(static_cast<std::int64_t>(text.footprint()));
  out.append(text);
}

Value apply_filter(Rendering& rendering, std::string_view name, const Value& input,
                   const PassedArguments& arguments) {
  const Filter filter = find_filter(name);
  if (!filter) throw MissingNameError("no filter is named '" + std::string(name.substr(0, 40)) + "'");
  return filter(rendering, input, arguments);
}

bool apply_test(Rendering& rendering, std::string_view name, const Value& input,
                const PassedArguments& arguments) {
  const Test test = find_test(name);
  if (!test) throw MissingNameError("no test is named '" + std::string(name.substr(0, 40)) + "'");
  return test(rendering, input, arguments);
}

Value call(Rendering& rendering, const Value& callee, const PassedArguments& arguments) {
  if (const auto* undefined = callee.get<Undefined>()) {
    throw MissingNameError(undefined->what ? *undefined->what : "an undefined value is called");
  }
  if (!callee.object()) throw Error("'" + std::string(callee.type_name()) + "' object is not callable");
  const Budget::Level level(rendering.budget);
  return callee.object()->call(rendering, arguments);
}

}  // namespace troupe::jinja
