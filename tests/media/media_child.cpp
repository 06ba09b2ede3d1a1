// `troupe media` by itself. Under a name with "without_seccomp" in it, on a kernel that takes no filters.
#include <seccomp.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "media/media_main.h"

namespace {

void refuse_filters() {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  const bool refused = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(seccomp), 0) == 0 &&
                       seccomp_rule_add(filter, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(prctl), 1,
                                        SCMP_A0(SCMP_CMP_EQ, PR_SET_SECCOMP)) == 0 &&
                       seccomp_load(filter) == 0;
  if (!refused) std::abort();
  seccomp_release(filter);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string own_name = std::filesystem::read_symlink("/proc/self/exe").filename().string();
  if (own_name.find("without_seccomp") != std::string::npos) refuse_filters();
  return troupe::media::media_main(std::vector<std::string>(argv + 2, argv + argc));
}
