#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// "1 death", "4 deaths". For nouns whose plural ends in s.
inline std::string counted(std::int64_t number, std::string_view noun) {
  return std::to_string(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

}  // namespace troupe
