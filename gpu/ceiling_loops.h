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
  double operations;  ///< floating-point operations of one run
};
DotLoop dot_loop(Isa isa);

}  // namespace troupe
