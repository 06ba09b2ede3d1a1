#pragma once
// Values as text: Python's str() and repr(), JSON, and back from JSON.
#include <nlohmann/json.hpp>
#include <string>

#include "text/template/jinja/budget.h"
#include "text/template/jinja/value.h"

namespace troupe::jinja {

/// str(). A container is trusted text only when every string in it is.
Text to_text(const Value& value, Budget& budget);

/// Python's repr() of a float: the shortest digits that read back as the same number.
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;  ///< one element a line
  std::string indent;   ///< of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// Python's json.dumps(). Throws Error for a value that JSON does not have. Trust as to_text().
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

/// Every string of `json`, keys too, gets the mark `trusted`. An integer beyond 64 bits becomes a float.
Value from_json(const nlohmann::ordered_json& json, bool trusted, Budget& budget);

}  // namespace troupe::jinja
