#pragma once
// The string operations that filters and methods share. Each keeps the trust of every byte.
#include <string_view>
#include <vector>

#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

/// Where `what` begins in `text`, at or behind `from`; npos: nowhere. Linear in both, whatever they are.
std::size_t find_first(std::string_view text, std::string_view what, std::size_t from = 0);
/// The same for its last occurrence.
std::size_t find_last(std::string_view text, std::string_view what);

/// strip(): removes whitespace, or the characters of `set` when it is not null, at the chosen ends.
Text strip(Rendering& rendering, const Text& text, const Text* set, bool left, bool right);

/// split(): on runs of whitespace when `separator` is null. `limit` < 0 means no limit; `from_right` counts
/// it from the end.
std::vector<Value> split(Rendering& rendering, const Text& text, const Text* separator, std::int64_t limit,
                         bool from_right);

/// Lines without their ends, or with them.
std::vector<Value> split_lines(Rendering& rendering, const Text& text, bool keep_ends);

/// replace(): the first `limit` occurrences, all when it is negative.
Text replace(Rendering& rendering, const Text& text, const Text& from, const Text& to, std::int64_t limit);

Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);  ///< first character upper, the others lower

}  // namespace troupe::jinja
