#include "base/base64.h"

#include <array>
#include <cstdint>

namespace troupe {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint32_t kNone = 1u << 24;  // above every sum of four values' bits

// values[i][c]: what character c says as the i-th of four, or kNone.
constexpr auto kValues = [] {
  std::array<std::array<std::uint32_t, 256>, 4> values{};
  for (auto& place : values) place.fill(kNone);
  for (std::uint32_t v = 0; v < 64; ++v) {
    for (std::uint32_t i = 0; i < 4; ++i)
      values[i][static_cast<unsigned char>(kAlphabet[v])] = v << (18 - 6 * i);
  }
  return values;
}();

std::uint32_t bits_of(const unsigned char* four, std::size_t count = 4) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < count; ++i) bits |= kValues[i][four[i]];
  return bits;
}

Status fault(std::string_view text, std::size_t from) {
  while (from < text.size() && kValues[3][static_cast<unsigned char>(text[from])] != kNone) ++from;
  const bool end = from >= text.size();
  const auto c = static_cast<unsigned char>(end ? 0 : text[from]);
  const std::string what = end ? "it ends in the middle of a byte"
                           : c >= 0x21 && c < 0x7f
                               ? "'" + std::string(1, static_cast<char>(c)) + "' is not allowed there"
                               : "byte " + std::to_string(c) + " is not allowed there";
  return invalid("not base64 at offset " + std::to_string(from) + ": " + what);
}

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  std::string_view digits = text;
  if (text.size() % 4 == 0) {  // padded, if at all
    for (int i = 0; i < 2 && digits.ends_with('='); ++i) digits.remove_suffix(1);
  }
  const std::size_t whole = digits.size() / 4 * 4, rest = digits.size() % 4;
  std::string bytes(whole / 4 * 3 + (rest > 1 ? rest - 1 : 0), '\0');
  const auto* in = reinterpret_cast<const unsigned char*>(digits.data());
  char* out = bytes.data();
  for (std::size_t i = 0; i < whole; i += 4, out += 3) {
    const std::uint32_t bits = bits_of(in + i);
    if (bits >= kNone) return fault(text, i);
    out[0] = static_cast<char>(bits >> 16);
    out[1] = static_cast<char>(bits >> 8);
    out[2] = static_cast<char>(bits);
  }
  if (rest == 0) return bytes;
  const std::uint32_t bits = bits_of(in + whole, rest);
  if (bits >= kNone) return fault(text, whole);
  const std::uint32_t used = rest == 2 ? 0xff0000u : 0xffff00u;
  if (rest == 1 || (bits & ~used) != 0) {
    return invalid("not base64 at offset " + std::to_string(digits.size() - 1) +
                   ": it ends in the middle of a byte");
  }
  for (std::size_t i = 0; i + 1 < rest; ++i) out[i] = static_cast<char>(bits >> (16 - 8 * i));
  return bytes;
}

void append_base64(std::string& out, std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view group = bytes.substr(at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0u);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out.push_back(i <= group.size() ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=');
    }
  }
}

}  // namespace troupe
