#pragma once
// Limits that a process sets itself before it works on what clients have written.
#include <cstdint>

namespace troupe {

/// The process may have so many bytes of private writable memory from now on: a request for more fails in the allocator. It
/// leaves no core file behind, which would hold what clients wrote.
void limit_process(std::uint64_t private_bytes);

}  // namespace troupe
