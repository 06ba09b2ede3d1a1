#pragma once
// The `format` and the length of strings, as regular expressions over the characters between the quotes.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::grammar {

/// The pattern that every string of the format matches; nothing for a format that is not enforced. Where a
/// pattern cannot say everything, it is narrower than the format: what it matches is valid.
std::optional<std::string> pattern_of_format(std::string_view format);

/// True for formats that say what a string is for and not what it looks like ("password").
bool is_describing_format(std::string_view format);

/// "date, time, …", for messages.
std::string known_formats();

/// Strings of `least` to `most` characters (nothing: without end), without escapes. An automaton counts by
/// having a state for each character, each with a mask of the whole vocabulary; so a larger `most` is not
/// part of what the pattern matches, and stands in it only for budget_of_pattern(): the compiled form counts
/// while it is followed.
std::string pattern_of_length(std::int64_t least, std::optional<std::int64_t> most);

/// The `most` that such a pattern leaves to be counted; nothing for other patterns.
std::optional<std::int32_t> budget_of_pattern(std::string_view pattern);

/// The same pattern in the part of the language that xgrammar's automata read soundly: in ASCII, with \u{…}
/// for other characters, and {0,1} for ?, whose automaton lets the end of what it follows come without its
/// begin.
std::string plain_pattern(std::string_view pattern);

}  // namespace troupe::grammar
