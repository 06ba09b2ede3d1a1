#pragma once
// Limits that a process sets itself before it works on what clients have written.
#include <cstdint>

namespace troupe {

/// The process may map so many bytes of private writable memory beyond those that it has now: a request for
/// more fails in the allocator. (What it has is counted apart because a sanitizer maps terabytes before
/// main.) It leaves no core file behind, which would hold what clients wrote.
void limit_process(std::uint64_t more_private_bytes);

}  // namespace troupe
