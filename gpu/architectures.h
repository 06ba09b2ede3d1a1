#pragma once
// Which GPUs the GPU code of a build runs on.
#include <cstddef>
#include <string_view>

namespace troupe {

/// `architectures` as in CMAKE_CUDA_ARCHITECTURES, separated by commas: "90a", "80-real,86-virtual". Machine
/// code (anything but -virtual) runs on its own capability and later ones of the same major number, that of
/// an "a" on its own alone. PTX (anything but -real) is translated for every later one, unless it is of an
/// "a".
constexpr bool code_runs_on(std::string_view architectures, int capability) {
  while (!architectures.empty()) {
    const std::size_t comma = architectures.find(',');
    std::string_view one = architectures.substr(0, comma);
    architectures.remove_prefix(comma == std::string_view::npos ? architectures.size() : comma + 1);
    int built = 0;
    while (!one.empty() && one.front() >= '0' && one.front() <= '9') {
      built = built * 10 + (one.front() - '0');
      one.remove_prefix(1);
    }
    if (built == 0 && !one.empty()) return true;  // "native", "all"
    const bool alone = one.starts_with('a');
    const bool machine_code = !one.ends_with("-virtual"), ptx = !one.ends_with("-real") && !alone;
    if (capability == built) return true;
    if (alone || capability < built) continue;
    if (ptx || (machine_code && capability / 10 == built / 10)) return true;
  }
  return false;
}

}  // namespace troupe
