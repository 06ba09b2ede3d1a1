#include "actors/metrics/process_use.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace troupe::metrics {

std::optional<ProcessUse> process_use(std::int64_t pid) {
  if (pid <= 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the name in parentheses, which may hold anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  std::int64_t user = 0, system = 0, threads = 0, pages = 0;
  for (int field = 3; field <= 13; ++field) fields >> skipped;
  fields >> user >> system;
  for (int field = 16; field <= 19; ++field) fields >> skipped;
  fields >> threads;
  for (int field = 21; field <= 23; ++field) fields >> skipped;
  fields >> pages;
  if (!fields) return std::nullopt;
  ProcessUse use;
  use.cpu_s = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  use.resident_bytes = pages * sysconf(_SC_PAGESIZE);
  use.threads = static_cast<std::int32_t>(threads);
  return use;
}

}  // namespace troupe::metrics
