#pragma once
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011): a
// counter-based generator. The n-th draw of a stream is a function of (key, n) alone, so a sequence's
// randomness does not depend on what else runs, and both devices draw the same.
#include <array>
#include <cstdint>

namespace troupe::kernels {

using Philox = std::array<std::uint32_t, 4>;

constexpr Philox philox4x32(Philox counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The 32 random bits that choose the token at output position `position` of choice `choice`: key is the
/// seed, counter is (position, choice).
constexpr std::uint32_t sample_bits(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  return philox4x32({position, 0, choice, 0},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})[0];
}

}  // namespace troupe::kernels
