#pragma once
// Reading the JSON files of a checkpoint without trusting them.
#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe::config {

inline constexpr std::size_t kMaxSmallFileBytes = std::size_t{16} << 20;
inline constexpr int kMaxConfigDepth = 32;

/// The whole file. not_found when it does not exist; invalid_argument when it is empty, not a regular
/// file or longer than `limit`.
Result<std::string> read_small_file(const std::filesystem::path& file,
                                    std::size_t limit = kMaxSmallFileBytes);

/// Parses one JSON object nested at most kMaxConfigDepth deep, so that recursive copying and printing cannot
/// exhaust the stack. Messages begin with `where`.
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& where);

}  // namespace troupe::config
