#pragma once
#include <string>
#include <string_view>

namespace troupe::config {

/// A value as an error message shows it, cut after 80 bytes.
inline std::string in_quotes(std::string_view text) { return "\"" + std::string(text.substr(0, 80)) + "\""; }

}  // namespace troupe::config
