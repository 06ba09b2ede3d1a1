#pragma once
// A JSON schema as clients write it → the part of JSON schema that the grammar compiler enforces.
//
// The compiler ignores keywords that it cannot express, and some combinations of keywords. enforceable()
// refuses each of them and names its place, and rewrites what means the same in other words (a format becomes
// a pattern, a oneOf whose options exclude each other an anyOf). Every answer that the rewritten schema
// allows is valid under the original one. docs/structured_output.md lists the rules.
#include <cstddef>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "text/grammar/form.h"

namespace troupe::grammar {

using troupe::Json;

/// The open_name_chars for a vocabulary of so many tokens: each character costs a look at all of them.
std::size_t open_name_chars_for(int vocabulary);

/// Rewrites `schema` in place. Not ok: invalid_argument, `param` is `place` and the path to the keyword at
/// fault
/// ("response_format.json_schema.schema.properties.a.not"), `reason` is invalid_schema, unsupported_schema,
/// unsatisfiable_schema or schema_too_large.
Status enforceable(Json& schema, const std::string& place, const SchemaLimits& limits = {});

}  // namespace troupe::grammar
