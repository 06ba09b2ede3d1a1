#pragma once
// Client JSON → tree, with its size bounded beforehand. For the parsers of http/, and for who
// reads again what they have passed on as text.
//
// The order of keys is kept (tools are shown to the model in the order they were given), a repeated key
// takes its last value, and numbers keep their kind: signed, unsigned or floating.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::http {

using Json = nlohmann::ordered_json;

struct JsonBounds {
  int depth = 0;              ///< open brackets at once
  std::int64_t elements = 0;  ///< values, all together
};

/// One pass over the bytes that builds nothing: refuses what nests too deeply ("json_too_deep") or holds
/// too many values ("too_many_elements"), naming the top-level field it happens in. It does not validate.
Status check_bounds(std::string_view text, const JsonBounds& bounds);

/// Bounds first, then the tree. Anything that is not exactly one well-formed UTF-8 JSON text is
/// "invalid_json".
Result<Json> parse_json(std::string_view text, const JsonBounds& bounds);

/// Compact text of a tree that parse_json() made.
std::string to_text(const Json& value);

/// For messages: the value as JSON (objects and lists by kind), and text, both cut to 48 bytes on a
/// character border.
std::string excerpt(const Json& value);
std::string cut(std::string_view text);

}  // namespace troupe::http
