#pragma once
// Client JSON → values, in one pass that also bounds their depth and number. The order of keys is kept (tools
// are shown to the model in the order they were given), a repeated key takes its last value, and numbers keep
// their kind: signed, unsigned or floating.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace troupe::http {

using troupe::Json;

struct JsonBounds {
  int depth = 0;              ///< open brackets at once
  std::int64_t elements = 0;  ///< values, all together
};

/// The value. Refused with the reason "invalid_json": anything but exactly one well-formed JSON text in
/// UTF-8; "json_too_deep" and "too_many_elements": what exceeds the bounds, with the top-level field it
/// happens in. Stops at the first fault, so memory stays within the bounds whatever the text.
Result<Json> parse_json(std::string_view text, const JsonBounds& bounds);

using json::to_text;

/// For messages: the value as JSON (objects and lists by kind), and text, both cut to 48 bytes on a
/// character border.
std::string excerpt(const Json& value);
std::string cut(std::string_view text);

}  // namespace troupe::http
