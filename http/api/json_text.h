#pragma once
// Writes JSON into a string: escaping, numbers, arrays of ids. The shape of the answers is known, and
// appending is several times faster than building and dumping a JSON value.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace troupe::http {

/// Appends `text` between quotes, escaped. What is not valid UTF-8 (also overlong forms, surrogates,
/// truncated characters) becomes U+FFFD, one per maximal invalid part, so the result is always a valid JSON
/// string.
void append_json_string(std::string& out, std::string_view text);

void append_integer(std::string& out, std::int64_t value);

/// The shortest text that reads back as the same float, which has to be finite.
void append_float(std::string& out, float value);

/// The same with a point or an exponent. JSON has no infinities: a log-probability of minus infinity (or NaN)
/// is written as -9999.0, as OpenAI-compatible servers do.
void append_logprob(std::string& out, float value);

/// [1,2,3]
void append_ids(std::string& out, std::span<const TokenId> ids);

}  // namespace troupe::http
