#pragma once
// The loops that the machine's limits are measured with: ceilings_x86.cpp or ceilings_generic.cpp.
#include <cstddef>
#include <cstdint>

#include "gpu/isa.h"

namespace troupe {

/// Reads memory that is aligned to 64 bytes, a multiple of 256 bytes, and returns the xor of its words.
using ReadLoop = std::uint64_t (*)(const std::byte* from, std::size_t bytes);
ReadLoop read_loop(Isa isa);

struct DotLoop {
  void (*run)();
  double operations;  ///< of one run: multiplications and additions
};
DotLoop dot_loop(Isa isa);
DotLoop int8_dot_loop(Isa isa);

/// A ReadLoop of plain 64-bit words, for any CPU. `bytes`: a multiple of 256.
inline std::uint64_t read_64(const std::byte* from, std::size_t bytes) {
  std::uint64_t sum[4] = {};
  const auto* p = reinterpret_cast<const std::uint64_t*>(from);
  for (std::size_t i = 0; i < bytes / 8; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] ^= p[i + static_cast<std::size_t>(j)];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

}  // namespace troupe
