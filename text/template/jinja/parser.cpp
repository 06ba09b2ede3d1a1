#include "text/template/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/template/jinja/error.h"

namespace troupe::jinja {
namespace {

using Kind = Token::Kind;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  ParsedTemplate run() {
    ParsedTemplate result;
    result.body = block({});
    result.names = std::move(names_);
    result.assigned = std::move(assigned_);
    result.guarded = std::move(guarded_);
    result.uses = std::move(uses_);
    return result;
  }

 private:
  // Statements up to one of the tags named in `until`, whose "{%" and name are consumed; its rest is not. An
  // empty list means the end of the template. The name is left in ended_by_.
  StatementBlock block(std::initializer_list<std::string_view> until) {
    Nesting nesting(*this);
    StatementBlock body;
    for (;;) {
      const Token token = next();
      if (token.kind == Kind::data) {
        body.push_back(std::make_unique<Data>(token.line, token.value));
      } else if (token.kind == Kind::print_begin) {
        if (peek().kind == Kind::print_end) unexpected("an expression");
        body.push_back(std::make_unique<Print>(token.line, tuple(true)));
        if (peek().kind != Kind::print_end) unexpected("\"}}\"");
        next();
      } else if (token.kind == Kind::block_begin) {
        if (peek().kind != Kind::name) unexpected("the name of a tag");
        const Token tag = next();
        if (std::find(until.begin(), until.end(), tag.value) != until.end()) {
          ended_by_ = tag.value;
          return body;
        }
        body.push_back(statement(tag));
      } else {
        if (until.size() != 0) unexpected("\"{% " + std::string(*(until.end() - 1)) + " %}\"");
        return body;
      }
    }
  }

  void end_of_tag() {
    if (peek().kind != Kind::block_end) unexpected("\"%}\"");
    next();
  }

  StatementPtr statement(const Token& tag) {
    if (tag.value == "if") return if_statement(tag.line);
    if (tag.value == "for") return for_statement(tag.line);
    if (tag.value == "set") return set_statement(tag.line);
    if (tag.value == "macro") return macro_statement(tag.line);
    if (tag.value == "call") return call_statement(tag.line);
    if (tag.value == "filter") return filter_statement(tag.line);
    if (tag.value == "with" || tag.value == "generation") return scope_statement(tag);
    if (tag.value == "break" || tag.value == "continue") return jump(tag);
    throw Error("unknown tag \"" + tag.value.substr(0, 40) + "\"", tag.line);
  }

  StatementPtr if_statement(int line) {
    auto node = std::make_unique<If>(line);
    ended_by_ = "elif";
    while (ended_by_ == "elif") {
      ExpressionPtr condition = tuple(false);
      end_of_tag();
      node->branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}));
    }
    if (ended_by_ == "else") {
      end_of_tag();
      node->otherwise = block({"endif"});
    }
    end_of_tag();
    return node;
  }

  StatementPtr for_statement(int line) {
    auto node = std::make_unique<For>(line);
    node->target = target();
    if (!accept_name("in")) unexpected("\"in\"");
    node->items = tuple(false);
    if (accept_name("if")) node->condition = expression();
    if (peek().is_name("recursive")) throw Error("recursive loops are not offered", line);
    end_of_tag();
    ++loops_;
    node->body = block({"else", "endfor"});
    --loops_;
    if (ended_by_ == "else") {
      end_of_tag();
      node->otherwise = block({"endfor"});
    }
    end_of_tag();
    return node;
  }

  StatementPtr set_statement(int line) {
    auto node = std::make_unique<Set>(line);
    node->target = target();
    if (accept_op("=")) {
      node->expression = tuple(true);
      end_of_tag();
      return node;
    }
    while (accept_op("|")) node->filters.push_back(applied_filter());
    end_of_tag();
    node->body = isolated_block({"endset"});
    end_of_tag();
    return node;
  }

  Application applied_filter() {
    Application filter = application("filter");
    note_application(NamedUse::Kind::filter, filter);
    return filter;
  }

  // The body of a macro or call block: a break in it does not end the loop around it.
  StatementBlock isolated_block(std::initializer_list<std::string_view> until) {
    const int around = std::exchange(loops_, 0);
    StatementBlock body = block(until);
    loops_ = around;
    return body;
  }

  void parameters(Macro& macro) {
    while (!accept_op(")")) {
      std::string name = expect_identifier();
      assigned_.insert(name);
      ExpressionPtr fallback = accept_op("=") ? expression() : nullptr;
      if (!fallback && !macro.parameters.empty() && macro.parameters.back().second) {
        throw Error("a parameter without a default follows one with a default", peek().line);
      }
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
      if (!peek().is_op(")")) expect_op(",");
    }
  }

  StatementPtr macro_statement(int line) {
    auto node = std::make_unique<Macro>(line);
    node->name = expect_identifier();
    assigned_.insert(node->name);
    expect_op("(");
    parameters(*node);
    end_of_tag();
    node->body = isolated_block({"endmacro"});
    end_of_tag();
    return node;
  }

  StatementPtr call_statement(int line) {
    auto node = std::make_unique<CallBlock>(line);
    auto caller = std::make_unique<Macro>(line);
    caller->name = "caller";
    if (accept_op("(")) parameters(*caller);
    node->callee = std::make_unique<NameExpression>(line, expect_identifier());
    names_.insert(static_cast<const NameExpression&>(*node->callee).name);
    while (accept_op(".")) {
      node->callee =
          std::make_unique<AttributeExpression>(line, std::move(node->callee), expect_identifier());
    }
    expect_op("(");
    note_call(*node->callee);
    node->arguments = call_arguments();
    end_of_tag();
    caller->body = isolated_block({"endcall"});
    end_of_tag();
    node->caller = std::move(caller);
    return node;
  }

  StatementPtr filter_statement(int line) {
    auto node = std::make_unique<FilterBlock>(line);
    do node->filters.push_back(applied_filter());
    while (accept_op("|"));
    end_of_tag();
    node->body = isolated_block({"endfilter"});
    end_of_tag();
    return node;
  }

  StatementPtr scope_statement(const Token& tag) {
    auto node = std::make_unique<With>(tag.line);
    while (tag.value == "with" && peek().kind != Kind::block_end) {
      Target variable = target_of_with();
      expect_op("=");
      node->variables.emplace_back(std::move(variable), expression());
      if (!accept_op(",")) break;
    }
    end_of_tag();
    node->body = tag.value == "with" ? block({"endwith"}) : block({"endgeneration"});
    end_of_tag();
    return node;
  }

  Target target_of_with() {
    Target variable;
    variable.line = peek().line;
    variable.name = expect_identifier();
    assigned_.insert(variable.name);
    return variable;
  }

  StatementPtr jump(const Token& tag) {
    if (loops_ == 0) throw Error("\"" + tag.value + "\" outside of a loop", tag.line);
    end_of_tag();
    return std::make_unique<Jump>(tag.line, tag.value == "break" ? Flow::break_loop : Flow::continue_loop);
  }

  std::string ended_by_;
  int loops_ = 0;
};

}  // namespace

ParsedTemplate parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace troupe::jinja
