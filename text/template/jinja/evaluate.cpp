#include "text/template/jinja/ast.h"
#include "text/template/jinja/operators.h"
#include "text/template/jinja/print.h"
#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

Value Expression::value(Rendering& rendering) const {
  rendering.budget.step();
  const Budget::Level level(rendering.budget);
  return evaluate(rendering);
}

PassedArguments CallArguments::values(Rendering& rendering) const {
  PassedArguments out;
  for (const auto& argument : positional) out.positional.push_back(argument->value(rendering));
  for (const auto& [name, argument] : named) out.named.emplace_back(name, argument->value(rendering));
  return out;
}

Value Constant::evaluate(Rendering&) const { return constant; }

Value NameExpression::evaluate(Rendering& rendering) const { return rendering.lookup(name); }

Value ListExpression::evaluate(Rendering& rendering) const {
  std::vector<Value> values;
  for (const auto& item : items) values.push_back(item->value(rendering));
  return rendering.make(std::move(values), tuple);
}

Value DictExpression::evaluate(Rendering& rendering) const {
  Dict dict;
  for (const auto& [key, item] : items) {
    Value name = key->value(rendering);
    dict.set(std::move(name), item->value(rendering), rendering.budget);
  }
  return rendering.make(std::move(dict));
}

Value Unary::evaluate(Rendering& rendering) const { return unary(op, operand->value(rendering)); }

Value Binary::evaluate(Rendering& rendering) const {
  Value a = left->value(rendering);
  if (op == BinaryOp::logical_and) return a.truthy() ? right->value(rendering) : a;
  if (op == BinaryOp::logical_or) return a.truthy() ? a : right->value(rendering);
  const Value b = right->value(rendering);
  return binary(rendering, op, a, b);
}

Value Concatenation::evaluate(Rendering& rendering) const {
  Text out;
  for (const auto& part : parts) {
    const Value value = part->value(rendering);
    const Text text = value.text() ? Text() : to_text(value, rendering.budget);
    const Text& printed = value.text() ? *value.text() : text;
    rendering.pay_for_copy(printed);
    out.append(printed);
  }
  return rendering.make(std::move(out));
}

Value Comparison::evaluate(Rendering& rendering) const {
  Value left = first->value(rendering);
  for (const auto& [op, operand] : rest) {
    Value right = operand->value(rendering);
    if (!compare(rendering, op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Conditional::evaluate(Rendering& rendering) const {
  if (condition->value(rendering).truthy()) return yes->value(rendering);
  if (no) return no->value(rendering);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value AttributeExpression::evaluate(Rendering& rendering) const {
  return attribute(rendering, object->value(rendering), name);
}

Value Subscript::evaluate(Rendering& rendering) const {
  const Value container = object->value(rendering);
  return item(rendering, container, index->value(rendering));
}

Value SliceExpression::evaluate(Rendering& rendering) const {
  const Value sequence = object->value(rendering);
  Value bounds[3];
  const Expression* const parts[3] = {start.get(), stop.get(), step.get()};
  for (int i = 0; i < 3; ++i) {
    if (parts[i]) bounds[i] = parts[i]->value(rendering);
  }
  return slice(rendering, sequence, start ? &bounds[0] : nullptr, stop ? &bounds[1] : nullptr,
               step ? &bounds[2] : nullptr);
}

Value CallExpression::evaluate(Rendering& rendering) const {
  const Value function = callee->value(rendering);
  const PassedArguments values = arguments.values(rendering);
  rendering.line = line();
  return call(rendering, function, values);
}

Value FilterExpression::evaluate(Rendering& rendering) const {
  const Value value = input->value(rendering);
  const PassedArguments values = filter.arguments.values(rendering);
  rendering.line = line();
  return apply_filter(rendering, filter.name, value, values);
}

Value TestExpression::evaluate(Rendering& rendering) const {
  const Value value = input->value(rendering);
  const PassedArguments values = test.arguments.values(rendering);
  rendering.line = line();
  return Value(apply_test(rendering, test.name, value, values) != negated);
}

}  // namespace troupe::jinja
