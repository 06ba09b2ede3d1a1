#include <algorithm>

#include "text/template/jinja/error.h"
#include "text/template/jinja/parser.h"

namespace troupe::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMaxNesting = 200;

template <class Node, class... Parts>
ExpressionPtr make(int line, Parts&&... parts) {
  return std::make_unique<const Node>(line, std::forward<Parts>(parts)...);
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case Kind::print_end: return "\"}}\"";
    case Kind::block_end: return "\"%}\"";
    case Kind::end: return "the end of the template";
    case Kind::data:
    case Kind::print_begin:
    case Kind::block_begin: return "text";
    default: return "\"" + token.value.substr(0, 40) + "\"";
  }
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.depth_ == kMaxNesting) throw Error("more than 200 levels of nesting", parser_.peek().line);
  ++parser_.depth_;
}

void ExpressionParser::unexpected(std::string_view wanted) const {
  throw Error("expected " + std::string(wanted) + ", got " + describe(peek()), peek().line);
}

bool ExpressionParser::accept_op(std::string_view spelling) {
  if (!peek().is_op(spelling)) return false;
  next();
  return true;
}

bool ExpressionParser::accept_name(std::string_view spelling) {
  if (!peek().is_name(spelling)) return false;
  next();
  return true;
}

void ExpressionParser::expect_op(std::string_view spelling) {
  if (!accept_op(spelling)) unexpected("\"" + std::string(spelling) + "\"");
}

std::string ExpressionParser::expect_identifier() {
  if (peek().kind != Kind::name) unexpected("a name");
  return next().value;
}

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
  Nesting nesting(*this);
  ExpressionPtr node = disjunction();
  while (with_conditional && peek().is_name("if")) {
    const int line = next().line;
    ExpressionPtr condition = disjunction();
    ExpressionPtr otherwise = accept_name("else") ? expression() : nullptr;
    node = make<Conditional>(line, std::move(condition), std::move(node), std::move(otherwise));
  }
  return node;
}

ExpressionPtr ExpressionParser::tuple(bool with_conditional) {
  const int line = peek().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  auto ends = [&] {
    const Token& token = peek();
    return token.kind == Kind::print_end || token.kind == Kind::block_end || token.is_op(")");
  };
  while (!ends()) {
    items.push_back(expression(with_conditional));
    if (!accept_op(",")) break;
    is_tuple = true;
  }
  if (items.empty() && !peek().is_op(")")) unexpected("an expression");
  if (is_tuple || items.empty()) return make<ListExpression>(line, std::move(items), true);
  return std::move(items.front());
}

ExpressionPtr ExpressionParser::disjunction() {
  ExpressionPtr left = conjunction();
  while (peek().is_name("or")) {
    const int line = next().line;
    left = make<Binary>(line, BinaryOp::logical_or, std::move(left), conjunction());
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  ExpressionPtr left = negation();
  while (peek().is_name("and")) {
    const int line = next().line;
    left = make<Binary>(line, BinaryOp::logical_and, std::move(left), negation());
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  Nesting nesting(*this);
  if (!peek().is_name("not")) return comparison();
  const int line = next().line;
  return make<Unary>(line, UnaryOp::logical_not, negation());
}

ExpressionPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::equal},      {"!=", CompareOp::not_equal}, {"<", CompareOp::less},
      {"<=", CompareOp::less_equal}, {">", CompareOp::greater},    {">=", CompareOp::greater_equal}};
  const int line = peek().line;
  ExpressionPtr first = sum();
  Comparison::Rest rest;
  for (;;) {
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const auto& known) { return peek().is_op(known.first); });
    if (op != std::end(kOps)) {
      next();
      rest.emplace_back(op->second, sum());
    } else if (accept_name("in")) {
      rest.emplace_back(CompareOp::in, sum());
    } else if (peek().is_name("not") && peek(1).is_name("in")) {
      next();
      next();
      rest.emplace_back(CompareOp::not_in, sum());
    } else {
      break;
    }
  }
  return rest.empty() ? std::move(first) : make<Comparison>(line, std::move(first), std::move(rest));
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (peek().is_op("+") || peek().is_op("-")) {
    const Token op = next();
    const BinaryOp kind = op.value == "+" ? BinaryOp::add : BinaryOp::subtract;
    left = make<Binary>(op.line, kind, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = peek().line;
  std::vector<ExpressionPtr> parts;
  do parts.push_back(product());
  while (accept_op("~"));
  return parts.size() == 1 ? std::move(parts.front()) : make<Concatenation>(line, std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  for (;;) {
    const Token& op = peek();
    const BinaryOp kind = op.is_op("*")    ? BinaryOp::multiply
                          : op.is_op("/")  ? BinaryOp::divide
                          : op.is_op("//") ? BinaryOp::floor_divide
                                           : BinaryOp::modulo;
    if (kind == BinaryOp::modulo && !op.is_op("%")) return left;
    const int line = next().line;
    left = make<Binary>(line, kind, std::move(left), power());
  }
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (peek().is_op("**")) {
    const int line = next().line;
    left = make<Binary>(line, BinaryOp::power, std::move(left), unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  Nesting nesting(*this);
  ExpressionPtr node;
  if (peek().is_op("-") || peek().is_op("+")) {
    const Token op = next();
    node = make<Unary>(op.line, op.value == "-" ? UnaryOp::negate : UnaryOp::plus, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary() {
  const int line = peek().line;
  switch (peek().kind) {
    case Kind::name: {
      std::string name = next().value;
      if (name == "true" || name == "True") return make<Constant>(line, Value(true));
      if (name == "false" || name == "False") return make<Constant>(line, Value(false));
      if (name == "none" || name == "None") return make<Constant>(line, Value(None{}));
      names_.insert(name);
      return make<NameExpression>(line, std::move(name));
    }
    case Kind::string: {
      std::string text;
      while (peek().kind == Kind::string) text += next().value;  // adjacent strings are one
      return make<Constant>(line, Value::trusted(std::move(text)));
    }
    case Kind::integer: return make<Constant>(line, Value(next().integer));
    case Kind::floating: return make<Constant>(line, Value(next().floating));
    default: break;
  }
  if (accept_op("(")) {
    ExpressionPtr node = tuple(true);
    expect_op(")");
    return node;
  }
  if (accept_op("[")) return list_literal();
  if (accept_op("{")) return dict_literal();
  unexpected("an expression");
}

ExpressionPtr ExpressionParser::list_literal() {
  const int line = peek().line;
  std::vector<ExpressionPtr> items;
  while (!accept_op("]")) {
    items.push_back(expression());
    if (!peek().is_op("]")) expect_op(",");
  }
  return make<ListExpression>(line, std::move(items), false);
}

ExpressionPtr ExpressionParser::dict_literal() {
  const int line = peek().line;
  DictExpression::Items items;
  while (!accept_op("}")) {
    ExpressionPtr key = expression();
    expect_op(":");
    items.emplace_back(std::move(key), expression());
    if (!peek().is_op("}")) expect_op(",");
  }
  return make<DictExpression>(line, std::move(items));
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
  for (;;) {
    const int line = peek().line;
    if (accept_op(".")) {
      if (peek().kind == Kind::integer) {
        node = make<Subscript>(line, std::move(node), make<Constant>(line, Value(next().integer)));
      } else {
        node = make<AttributeExpression>(line, std::move(node), expect_identifier());
      }
    } else if (accept_op("[")) {
      node = subscript(std::move(node));
    } else if (accept_op("(")) {
      node = call(line, std::move(node));
    } else {
      return node;
    }
  }
}

/// Behind the opening parenthesis of a call's arguments.
ExpressionPtr ExpressionParser::call(int line, ExpressionPtr callee) {
  note_call(*callee);
  return make<CallExpression>(line, std::move(callee), call_arguments());
}

void ExpressionParser::note_call(const Expression& callee) {
  if (const auto* name = dynamic_cast<const NameExpression*>(&callee)) {
    uses_.push_back({NamedUse::Kind::function, name->name, callee.line()});
  } else if (const auto* attribute = dynamic_cast<const AttributeExpression*>(&callee)) {
    uses_.push_back({NamedUse::Kind::method, attribute->name, callee.line()});
  }
}

/// Also what a filter applies to each element, if its name is written out: map("upper"), select("defined").
void ExpressionParser::note_application(NamedUse::Kind kind, const Application& application) {
  uses_.push_back({kind, application.name, application.line});
  if (kind != NamedUse::Kind::filter) return;
  struct Inner {
    std::string_view filter;
    std::size_t argument;
    NamedUse::Kind kind;
  };
  static constexpr Inner kInner[] = {{"map", 0, NamedUse::Kind::filter},
                                     {"select", 0, NamedUse::Kind::test},
                                     {"reject", 0, NamedUse::Kind::test},
                                     {"selectattr", 1, NamedUse::Kind::test},
                                     {"rejectattr", 1, NamedUse::Kind::test}};
  for (const Inner& inner : kInner) {
    const auto& arguments = application.arguments.positional;
    if (inner.filter != application.name || arguments.size() <= inner.argument) continue;
    const auto* constant = dynamic_cast<const Constant*>(arguments[inner.argument].get());
    if (constant == nullptr || !constant->constant.text()) continue;
    uses_.push_back({inner.kind, std::string(constant->constant.text()->view()), constant->line()});
  }
}

void ExpressionParser::note_guard(const Expression& input, std::string_view test) {
  if (test == "defined" || test == "undefined") {
    if (const auto* name = dynamic_cast<const NameExpression*>(&input)) guarded_.insert(name->name);
    if (const auto* attribute = dynamic_cast<const AttributeExpression*>(&input))
      guarded_.insert(attribute->name);
  } else if (test == "filter" || test == "test") {
    const auto* constant = dynamic_cast<const Constant*>(&input);
    if (constant && constant->constant.text()) guarded_.emplace(constant->constant.text()->view());
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const int line = peek().line;
  auto bound = [&]() -> ExpressionPtr {
    return peek().is_op(":") || peek().is_op("]") ? nullptr : expression();
  };
  ExpressionPtr start = bound();
  if (accept_op(":")) {
    ExpressionPtr stop = bound();
    ExpressionPtr step = accept_op(":") ? bound() : nullptr;
    expect_op("]");
    return make<SliceExpression>(line, std::move(object), std::move(start), std::move(stop), std::move(step));
  }
  if (!start) unexpected("an index");
  expect_op("]");
  return make<Subscript>(line, std::move(object), std::move(start));
}

CallArguments ExpressionParser::call_arguments() {
  CallArguments arguments;
  while (!accept_op(")")) {
    if (peek().is_op("*") || peek().is_op("**")) {
      throw Error("unpacking of arguments with * is not offered", peek().line);
    }
    if (peek().kind == Kind::name && peek(1).is_op("=")) {
      std::string name = next().value;
      next();
      arguments.named.emplace_back(std::move(name), expression());
    } else {
      if (!arguments.named.empty()) throw Error("a positional argument follows a named one", peek().line);
      arguments.positional.push_back(expression());
    }
    if (!peek().is_op(")")) expect_op(",");
  }
  return arguments;
}

Application ExpressionParser::application(std::string_view kind) {
  Application result;
  result.line = peek().line;
  if (peek().kind != Kind::name) unexpected("the name of a " + std::string(kind));
  result.name = next().value;
  while (accept_op(".")) result.name += "." + expect_identifier();
  if (accept_op("(")) result.arguments = call_arguments();
  return result;
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr node) {
  for (;;) {
    const int line = peek().line;
    if (accept_op("|")) {
      node = make<FilterExpression>(line, std::move(node), application("filter"));
      note_application(NamedUse::Kind::filter, static_cast<const FilterExpression&>(*node).filter);
    } else if (accept_name("is")) {
      node = test(std::move(node));
    } else if (accept_op("(")) {
      node = call(line, std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const int line = peek().line;
  const bool negated = accept_name("not");
  Application test = application("test");
  // "is divisibleby 3" takes its one argument without parentheses.
  const Token& token = peek();
  static constexpr std::string_view kFollowers[] = {"else", "or", "and", "if",
                                                    "not",  "in", "is",  "recursive"};
  const bool name = token.kind == Kind::name && std::find(std::begin(kFollowers), std::end(kFollowers),
                                                          token.value) == std::end(kFollowers);
  const bool literal = token.kind == Kind::string || token.kind == Kind::integer ||
                       token.kind == Kind::floating || token.is_op("[") || token.is_op("{");
  if (test.arguments.positional.empty() && test.arguments.named.empty() && (name || literal)) {
    test.arguments.positional.push_back(postfix(primary()));
  }
  note_application(NamedUse::Kind::test, test);
  note_guard(*input, test.name);
  return make<TestExpression>(line, std::move(input), std::move(test), negated);
}

Target ExpressionParser::single_target() {
  Target result;
  result.line = peek().line;
  if (accept_op("(")) {
    Nesting nesting(*this);
    result = target();
    expect_op(")");
    return result;
  }
  result.name = expect_identifier();
  for (const char* reserved : {"true", "false", "none", "True", "False", "None", "loop"}) {
    if (result.name == reserved) throw Error("\"" + result.name + "\" cannot be assigned to", result.line);
  }
  assigned_.insert(result.name);
  if (accept_op(".")) result.attribute = expect_identifier();
  if (!result.attribute.empty()) assigned_.insert(result.attribute);
  return result;
}

Target ExpressionParser::target() {
  Target first = single_target();
  if (!peek().is_op(",")) return first;
  Target all;
  all.line = first.line;
  all.parts.push_back(std::move(first));
  while (accept_op(",")) {
    if (peek().kind != Kind::name && !peek().is_op("(")) break;
    if (peek().is_name("in")) break;
    all.parts.push_back(single_target());
  }
  return all;
}

}  // namespace troupe::jinja
