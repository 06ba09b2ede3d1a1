// For CPUs other than x86-64: they have the baseline alone.
#include <sys/utsname.h>

#include "gpu/isa.h"

namespace troupe {

CpuFeatures detect_cpu() {
  CpuFeatures found;
  utsname system{};
  found.model = uname(&system) == 0 ? system.machine : "unknown";
  return found;
}

std::string ask_for_amx() { return "no such processor"; }

}  // namespace troupe
