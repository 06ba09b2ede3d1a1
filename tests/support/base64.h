#pragma once
#include <string>
#include <string_view>

namespace troupe::testing {

/// Base64 of RFC 4648 §4, padded.
inline std::string base64_of(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::size_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * j) & 63];
  }
  return out;
}

}  // namespace troupe::testing
