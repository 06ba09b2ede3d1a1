#pragma once
// What --speculative-config asks for: FastDeploy's keys and methods.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

/// Most draft tokens of a row.
inline constexpr int kMostLayerDrafts = 5;
inline constexpr int kMostNgramDrafts = 8;

/// A JSON object whose "method" is mtp, ngram (also ngram_match) or naive, which drafts nothing. The empty
/// text asks for nothing. Defaults: 1 draft token with mtp, 4 with ngram. invalid_argument names the key, its
/// value and what is allowed; unsupported: known to FastDeploy or others, but not offered, with what is.
Result<SpeculationOptions> parse_speculation(std::string_view text);

/// The errors of parse_speculation() but for `unsupported`, and that one alone ("" when there is none).
Status check_speculation(std::string_view text);
std::string unavailable_speculation(std::string_view text);

/// A line for each key of a text that parse_speculation() accepts which has no effect.
std::vector<std::string> speculation_warnings(std::string_view text);

}  // namespace troupe::config
