#pragma once
// The tree of a compiled template. It is immutable and shared by all renderings; a rendering walks it.
// Nodes evaluate and execute themselves: expressions in evaluate.cpp, statements in execute.cpp.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/jinja/value.h"

namespace troupe::jinja {

class Rendering;

class Expression {
 public:
  explicit Expression(int line) : line_(line) {}
  virtual ~Expression() = default;

  /// One step of the budget and one level of depth around evaluate().
  Value value(Rendering& rendering) const;
  int line() const { return line_; }

 private:
  virtual Value evaluate(Rendering& rendering) const = 0;
  int line_;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;

  PassedArguments values(Rendering& rendering) const;
};

/// A filter or test by name with its arguments.
struct Application {
  std::string name;
  CallArguments arguments;
  int line = 0;
};

enum class UnaryOp { negate, plus, logical_not };
enum class BinaryOp { add, subtract, multiply, divide, floor_divide, modulo, power, logical_and, logical_or };
enum class CompareOp { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

// Each expression: its parts in the order of evaluation.
struct Constant : Expression {
  Constant(int line, Value v) : Expression(line), constant(std::move(v)) {}
  Value evaluate(Rendering&) const override;
  Value constant;
};
struct NameExpression : Expression {
  NameExpression(int line, std::string n) : Expression(line), name(std::move(n)) {}
  Value evaluate(Rendering&) const override;
  std::string name;
};
struct ListExpression : Expression {
  ListExpression(int line, std::vector<ExpressionPtr> i, bool t)
      : Expression(line), items(std::move(i)), tuple(t) {}
  Value evaluate(Rendering&) const override;
  std::vector<ExpressionPtr> items;
  bool tuple;
};
struct DictExpression : Expression {
  using Items = std::vector<std::pair<ExpressionPtr, ExpressionPtr>>;
  DictExpression(int line, Items i) : Expression(line), items(std::move(i)) {}
  Value evaluate(Rendering&) const override;
  Items items;
};
struct Unary : Expression {
  Unary(int line, UnaryOp o, ExpressionPtr e) : Expression(line), op(o), operand(std::move(e)) {}
  Value evaluate(Rendering&) const override;
  UnaryOp op;
  ExpressionPtr operand;
};
struct Binary : Expression {
  Binary(int line, BinaryOp o, ExpressionPtr a, ExpressionPtr b)
      : Expression(line), op(o), left(std::move(a)), right(std::move(b)) {}
  Value evaluate(Rendering&) const override;
  BinaryOp op;
  ExpressionPtr left, right;
};
struct Concatenation : Expression {
  Concatenation(int line, std::vector<ExpressionPtr> p) : Expression(line), parts(std::move(p)) {}
  Value evaluate(Rendering&) const override;
  std::vector<ExpressionPtr> parts;
};
struct Comparison : Expression {
  using Rest = std::vector<std::pair<CompareOp, ExpressionPtr>>;
  Comparison(int line, ExpressionPtr f, Rest r) : Expression(line), first(std::move(f)), rest(std::move(r)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr first;
  Rest rest;  // a < b < c holds when each neighbouring pair does
};
struct Conditional : Expression {
  Conditional(int line, ExpressionPtr c, ExpressionPtr y, ExpressionPtr n)
      : Expression(line), condition(std::move(c)), yes(std::move(y)), no(std::move(n)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr condition, yes, no;  // no may be null: undefined
};
struct AttributeExpression : Expression {
  AttributeExpression(int line, ExpressionPtr o, std::string n)
      : Expression(line), object(std::move(o)), name(std::move(n)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr object;
  std::string name;
};
struct Subscript : Expression {
  Subscript(int line, ExpressionPtr o, ExpressionPtr i)
      : Expression(line), object(std::move(o)), index(std::move(i)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr object, index;
};
struct SliceExpression : Expression {
  SliceExpression(int line, ExpressionPtr o, ExpressionPtr a, ExpressionPtr b, ExpressionPtr s)
      : Expression(line), object(std::move(o)), start(std::move(a)), stop(std::move(b)), step(std::move(s)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr object, start, stop, step;  // all but object may be null
};
struct CallExpression : Expression {
  CallExpression(int line, ExpressionPtr c, CallArguments a)
      : Expression(line), callee(std::move(c)), arguments(std::move(a)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterExpression : Expression {
  FilterExpression(int line, ExpressionPtr i, Application a)
      : Expression(line), input(std::move(i)), filter(std::move(a)) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr input;
  Application filter;
};
struct TestExpression : Expression {
  TestExpression(int line, ExpressionPtr i, Application a, bool n)
      : Expression(line), input(std::move(i)), test(std::move(a)), negated(n) {}
  Value evaluate(Rendering&) const override;
  ExpressionPtr input;
  Application test;
  bool negated;
};

/// How a statement ended.
enum class Flow { next, break_loop, continue_loop };

class Statement {
 public:
  explicit Statement(int line) : line_(line) {}
  virtual ~Statement() = default;
  /// One step of the budget around execute(); appends to `out`.
  Flow run(Rendering& rendering, Text& out) const;
  int line() const { return line_; }

 private:
  virtual Flow execute(Rendering& rendering, Text& out) const = 0;
  int line_;
};
using StatementPtr = std::unique_ptr<const Statement>;
using StatementBlock = std::vector<StatementPtr>;

Flow run_block(const StatementBlock& block, Rendering& rendering, Text& out);

/// What an assignment or a loop assigns to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;
  int line = 0;
};

struct Data : Statement {
  Data(int line, std::string t) : Statement(line), text(std::move(t)) {}
  Flow execute(Rendering&, Text&) const override;
  std::string text;
};
struct Print : Statement {
  Print(int line, ExpressionPtr e) : Statement(line), expression(std::move(e)) {}
  Flow execute(Rendering&, Text&) const override;
  ExpressionPtr expression;
};
struct If : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  std::vector<std::pair<ExpressionPtr, StatementBlock>> branches;
  StatementBlock otherwise;
};
struct For : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  Target target;
  ExpressionPtr items, condition;  // condition may be null
  StatementBlock body, otherwise;
};
struct Set : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  Target target;
  ExpressionPtr expression;  // null: the text of body, through the filters
  std::vector<Application> filters;
  StatementBlock body;
};
struct Macro : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with the default, perhaps null
  StatementBlock body;
};
struct CallBlock : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  std::unique_ptr<const Macro> caller;
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterBlock : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  std::vector<Application> filters;
  StatementBlock body;
};
/// A scope of its own; `generation` tags are one without variables.
struct With : Statement {
  using Statement::Statement;
  Flow execute(Rendering&, Text&) const override;
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  StatementBlock body;
};
struct Jump : Statement {
  Jump(int line, Flow f) : Statement(line), flow(f) {}
  Flow execute(Rendering&, Text&) const override;
  Flow flow;
};

}  // namespace troupe::jinja
