#pragma once
// Forms as clients describe them → sources for the compiler. Everything that can be decided without compiling
// is decided here: sizes, nesting, keywords that would not be enforced, names of tokens.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar/compiler.h"
#include "text/grammar/schema.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe::grammar {

struct Form {
  enum class Kind : std::uint8_t { json_object, json_schema, regex, choice, grammar, structural_tag };
  Kind kind = Kind::json_object;
  Json value;  ///< json_schema, structural_tag: the object; choice: a list of strings; regex, grammar: a
               ///< string
  std::string param;  ///< the field it came from, for errors
  /// Parts of `value` that the request has elsewhere: path within `value` → place in the request.
  std::vector<std::pair<std::string, std::string>> places{};
};

struct FormLimits {
  SchemaLimits schema;
  std::size_t text_bytes = 65536;  ///< of a regex or a grammar
  int nesting = 500;               ///< of parentheses in one
  std::size_t choices = 1000;
};

/// `texts` know the tokens that a structural tag names. Not ok: invalid_argument; `param` is the place,
/// `reason` one of those of enforceable(), or invalid_value, grammar_too_large, grammar_too_deep.
Result<Source> prepare(Form form, const TokenTexts& texts, bool any_whitespace,
                       const FormLimits& limits = {});

}  // namespace troupe::grammar
