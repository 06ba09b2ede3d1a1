#pragma once
// Whether the regular expressions of a JSON schema are regular expressions, for schemas that nothing
// enforces.
#include <optional>
#include <string>
#include <string_view>

#include "http/api/object_schema.h"

namespace troupe::http {

/// Why a text is no regular expression in any usual api; empty if it may be one. Linear in its length.
std::string regex_fault(std::string_view text);

/// The first `pattern`, or name in `patternProperties`, that is no regular expression. Recursion is as deep
/// as the schema.
std::optional<SchemaFault> bad_pattern(const Json& schema);

}  // namespace troupe::http
