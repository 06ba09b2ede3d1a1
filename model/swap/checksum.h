#pragma once
// A checksum that finds damaged and exchanged contents of swapped blocks, at about the speed of a copy.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace troupe::model {

/// 64 bits over all bytes, four independent chains of words. No defence against anyone who chooses the bytes.
inline std::uint64_t checksum(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  std::uint64_t lanes[4] = {1, 2, 3, bytes.size()};
  const auto add = [&](int lane, const std::byte* at, std::size_t n) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, n);
    lanes[lane] = std::rotl((lanes[lane] ^ word) * kPrime, 29);
  };
  std::size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    for (int lane = 0; lane < 4; ++lane) add(lane, bytes.data() + i + 8 * static_cast<std::size_t>(lane), 8);
  }
  for (; i < bytes.size(); i += 8) add(0, bytes.data() + i, bytes.size() - i < 8 ? bytes.size() - i : 8);
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum = std::rotl((sum ^ lane) * kPrime, 31);
  return sum ^ sum >> 32;
}

}  // namespace troupe::model
