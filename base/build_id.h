#pragma once
#include <string>

namespace troupe {

/// The linker's build id in hexadecimal digits; of a binary without one, its size and time of change. The
/// same in every process of one file.
std::string build_id();

}  // namespace troupe
