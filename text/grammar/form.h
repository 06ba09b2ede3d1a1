#pragma once
// A form as a client wrote it, unread, and the bounds of one. text/grammar/form_check.h reads it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::grammar {

struct Form {
  enum class Kind : std::uint8_t { json_object, json_schema, regex, choice, grammar, structural_tag };
  Kind kind = Kind::json_object;
  /// JSON text. json_schema, structural_tag: of an object; choice: of a list of strings; regex, grammar: of a
  /// string.
  std::string value;
  std::string param;  ///< the field it came from, for errors
  /// Parts of `value` that the request has elsewhere: path within `value` → place in the request.
  std::vector<std::pair<std::string, std::string>> places{};
};

/// Bounds of one schema; OpenAI's, apart from the depth. Schemas of the plain kinds within them compile in
/// the time and the memory of the process for that (tests/forms/large_schemas_test.cpp).
struct SchemaLimits {
  int depth = 64;
  int properties = 5000;
  int enum_values = 1000;
  std::size_t name_chars = 120000;  ///< of property names, definitions, enum and const strings together
  std::size_t pattern_bytes = 65536;
  int schemas = 20000;                 ///< schemas within it, references counted once
  int optional_properties = 2000;      ///< of one object: each of its masks looks at all that may come next
  std::size_t open_name_chars = 2000;  ///< of declared names beside additionalProperties that are not false
  std::int64_t counted_properties = 4000;  ///< rules for minProperties and maxProperties
};

struct FormLimits {
  SchemaLimits schema;
  std::size_t text_bytes = 65536;  ///< of a regex or a grammar
  int nesting = 500;               ///< of parentheses in one
  std::size_t choices = 1000;
};

}  // namespace troupe::grammar
