#pragma once
#include <span>
#include <string>

namespace troupe {

/// Two digits for each byte, lower case.
inline std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace troupe
