#pragma once
// Tokens to a tree: Jinja's grammar with its precedences, without inheritance and inclusion.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/lexer.h"

namespace troupe::jinja {

using NameSet = std::set<std::string, std::less<>>;

/// A place where the template applies a filter or test, or calls a function or method.
struct NamedUse {
  enum class Kind { filter, test, function, method };
  Kind kind{};
  std::string name;
  int line = 0;
};

struct ParsedTemplate {
  StatementBlock body;
  NameSet names;     ///< every variable the template reads
  NameSet assigned;  ///< variables, macros, parameters and attributes that it sets
  NameSet guarded;   ///< names that it asks about first: "is defined", "is filter", "is test"
  std::vector<NamedUse>
      uses;  ///< in the order of the source; those by a name that is computed are not among them
};

/// Throws Error with the line of a syntax error.
ParsedTemplate parse(std::string_view source);

/// The token stream and the expression half of the grammar; statements are in parser.cpp.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  ExpressionPtr expression() { return expression(true); }
  ExpressionPtr expression(bool with_conditional);

  /// Comma-separated expressions become a tuple; one without a comma stays itself.
  ExpressionPtr tuple(bool with_conditional);

  Target target();
  Application application(std::string_view kind);
  CallArguments call_arguments();

  const Token& peek(std::size_t offset = 0) const {
    return tokens_[std::min(at_ + offset, tokens_.size() - 1)];
  }
  Token next() { return tokens_[at_ == tokens_.size() - 1 ? at_ : at_++]; }
  bool accept_op(std::string_view spelling);
  bool accept_name(std::string_view spelling);
  void expect_op(std::string_view spelling);
  std::string expect_identifier();
  [[noreturn]] void unexpected(std::string_view wanted) const;

  /// Nesting of expressions and blocks; bounds the parser's recursion.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

  NameSet names_;
  NameSet assigned_;
  NameSet guarded_;
  std::vector<NamedUse> uses_;

  void note_call(const Expression& callee);
  void note_application(NamedUse::Kind kind, const Application& application);

 private:
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filters_and_tests(ExpressionPtr node);
  ExpressionPtr call(int line, ExpressionPtr callee);
  ExpressionPtr test(ExpressionPtr input);
  void note_guard(const Expression& input, std::string_view test);
  Target single_target();

  const std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace troupe::jinja
