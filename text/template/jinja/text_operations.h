#pragma once
// The string operations that filters and methods share. Each keeps the trust of every byte.
#include <string_view>
#include <vector>

#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

/// strip(): removes whitespace, or the characters of `set` when it is not null, at the chosen ends.
Text strip(const Text& text, const Text* set, bool left, bool right);

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
