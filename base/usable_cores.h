#pragma once
// How many threads can run at once in this process. std::thread::hardware_concurrency() knows no quota, and
// not everywhere the cores that taskset or a container allow.
#include <filesystem>

namespace troupe {

/// Logical processors that the process may run on (affinity), at most what control groups allow it (a quota
/// of 2.5 processors is 2), and at least 1. Reads files: for the start of a part, not for each request.
unsigned usable_cores(const std::filesystem::path& root = "/");

/// Half of them, 1 to 4: for work on texts and forms, beside which the model needs cores.
unsigned half_the_cores();

}  // namespace troupe
