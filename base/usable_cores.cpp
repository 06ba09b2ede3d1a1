#include "base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/control_groups.h"

namespace troupe {

unsigned usable_cores(const std::filesystem::path& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
  double cores = known ? CPU_COUNT(&set) : std::thread::hardware_concurrency();
  if (const auto allowed = control_group_processors(root)) cores = std::min(cores, *allowed);
  return std::max(1u, static_cast<unsigned>(cores));
}

unsigned half_the_cores() { return std::clamp(usable_cores() / 2, 1u, 4u); }

}  // namespace troupe
