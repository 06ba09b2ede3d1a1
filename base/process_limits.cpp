#include "base/process_limits.h"

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace troupe {
namespace {

/// Bytes of private writable memory that the process has mapped.
std::uint64_t mapped_private_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::uint64_t{std::strtoull(line.c_str() + 7, nullptr, 10)} << 10;
  }
  return 0;
}

}  // namespace

void limit_process(std::uint64_t more_private_bytes) {
  const std::uint64_t most = mapped_private_bytes() + more_private_bytes;
  const rlimit data{most, most}, core{0, 0};
  setrlimit(RLIMIT_DATA, &data);
  setrlimit(RLIMIT_CORE, &core);
}

}  // namespace troupe
