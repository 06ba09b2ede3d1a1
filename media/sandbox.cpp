#include "media/sandbox.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "base/process_limits.h"

namespace troupe::media {
namespace {

constexpr std::uint64_t kPrivateBytes = std::uint64_t{2} << 30;
/// Of all mappings: the private ones, the file and the patches, and what allocators reserve.
constexpr std::uint64_t kMappedBytes = std::uint64_t{4} << 30;
constexpr rlim_t kMostDescriptors = 16;

struct Release {
  void operator()(void* filter) const { seccomp_release(filter); }
};

/// Beyond what is mapped now, which with a sanitizer is terabytes.
void limit_address_space(std::uint64_t more) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t most = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit space{most, most};
  if (pages > 0) setrlimit(RLIMIT_AS, &space);
}

/// System calls that are allowed whatever their arguments: memory, time, the socket, the end. sigaltstack is
/// called by sanitizers only.
constexpr int kAllowed[] = {
    SCMP_SYS(recvmsg),         SCMP_SYS(sendmsg),    SCMP_SYS(close),      SCMP_SYS(munmap),
    SCMP_SYS(mremap),          SCMP_SYS(brk),        SCMP_SYS(madvise),    SCMP_SYS(futex),
    SCMP_SYS(clock_gettime),   SCMP_SYS(exit),       SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(restart_syscall), SCMP_SYS(sigaltstack)};

/// 0, or the negative errno of the first rule that cannot be had.
int add_rules(void* filter) {
  int error = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
  for (const int call : kAllowed) {
    if (error == 0) error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
  }
  // No memory becomes code.
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mprotect)}) {
    if (error == 0)
      error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
  }
  if (error == 0)
    error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1, SCMP_A1(SCMP_CMP_EQ, F_ADD_SEALS));
  if (error == 0)  // a fault's last words
    error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(write), 1, SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO));
  return error;
}

}  // namespace

void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  syscall(SYS_capset, &header, none);
}

void limit_memory() {
  limit_process(kPrivateBytes);
  limit_address_space(kMappedBytes);
}

Status enter_sandbox() {
  const auto refused = [](const char* what, int error) {
    return failure(Code::unsupported, std::string(what) + ": " + std::strerror(error));
  };
  limit_memory();
  const rlimit descriptors{kMostDescriptors, kMostDescriptors};
  setrlimit(RLIMIT_NOFILE, &descriptors);
  // Where containers forbid namespaces the filter below is still there.
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // new credentials clear it
  drop_capabilities();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return refused("the kernel does not give up privileges", errno);
  const std::unique_ptr<void, Release> filter(seccomp_init(SCMP_ACT_KILL_PROCESS));
  if (filter == nullptr) return refused("no filter of system calls can be made", ENOMEM);
  int error = add_rules(filter.get());
  if (error == 0) error = seccomp_load(filter.get());
  if (error != 0) return refused("the kernel takes no filter of system calls", -error);
  return {};
}

}  // namespace troupe::media
