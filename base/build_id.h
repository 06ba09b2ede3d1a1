#pragma once
#include <cstdint>

namespace troupe {

/// Tells this build of the program from others: a hash of the identification that the linker writes, or,
/// where it writes none, of the file's size and time. Not zero; the same in every process of one file.
std::uint64_t build_id();

}  // namespace troupe
