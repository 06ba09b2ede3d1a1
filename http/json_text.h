#pragma once
// Writing JSON by hand: escaping, numbers, arrays of ids. For the answers, whose shape is known, appending
// to one string is several times faster than building and dumping a tree.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace troupe::http {

/// Appends `text` between quotes, escaped. Whatever is not valid UTF-8 (overlong forms, surrogates and
/// truncated characters among it) becomes U+FFFD, one per maximal invalid part, so the result is always a
/// valid JSON string.
void append_json_string(std::string& out, std::string_view text);

/// True when `text` is well-formed UTF-8.
bool is_utf8(std::string_view text);

/// Length in bytes of the well-formed UTF-8 character at the start of `text`; 0 when there is none.
std::size_t utf8_length(std::string_view text);

void append_integer(std::string& out, std::int64_t value);

/// The shortest text that reads back as the same float. JSON has no infinities: a log-probability of
/// minus infinity (or NaN) is written as -9999.0, as OpenAI-compatible servers do.
void append_logprob(std::string& out, float value);

/// [1,2,3]
void append_ids(std::string& out, std::span<const TokenId> ids);

}  // namespace troupe::http
