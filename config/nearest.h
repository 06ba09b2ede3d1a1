#pragma once
// Suggestions for misspelt names.
#include <string>
#include <string_view>
#include <vector>

namespace troupe::config {

/// Fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// The most similar candidate (at most a third of the letters wrong, or the word is a beginning of it),
/// or an empty string.
std::string_view nearest(std::string_view name, const std::vector<std::string_view>& candidates);

/// "; did you mean --port?" with `prefix` before the candidate, or nothing.
std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& candidates,
                         std::string_view prefix = "");

}  // namespace troupe::config
