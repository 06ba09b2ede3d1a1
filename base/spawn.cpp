#include "base/spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/owned_fd.h"

namespace troupe {
namespace {

/// What become() needs; made before the fork, because nothing may be allocated behind it.
struct Prepared {
  pid_t parent;
  const char* executable;
  std::vector<char*> argv;
  std::vector<char*> envp;
  std::vector<int> kept;  ///< sorted
  int input;
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec only async-signal-safe calls are allowed: another thread (the log's) may have held
// any lock at the fork.
[[noreturn]] void become(const SpawnOrder& order, const Prepared& prepared) {
  if (order.death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, order.death_signal);
    if (getppid() != prepared.parent) _exit(127);  // the parent died before the line above
  }
  if (order.own_group) setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  for (const int signal : order.ignored_signals) ::signal(signal, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(prepared.input, STDIN_FILENO);
  if (order.output >= 0) {
    dup2(order.output, STDOUT_FILENO);
    dup2(order.output, STDERR_FILENO);
  }
  for (const int fd : prepared.kept) fcntl(fd, F_SETFD, 0);
  close_all_but(prepared.kept);
  execve(prepared.executable, prepared.argv.data(), prepared.envp.data());
  _exit(127);
}

void close_between(unsigned first, unsigned last) {
  if (::close_range(first, last, 0) != 0) close_listed(first, last);
}

/// The number in a name of /proc/self/fd; UINT_MAX for "." and "..".
unsigned number_in(const char* name) {
  unsigned number = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return UINT_MAX;
    number = number * 10 + static_cast<unsigned>(*name - '0');
  }
  return number;
}

}  // namespace

void close_listed(unsigned first, unsigned last) {
  const int listing = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listing < 0) return;  // without /proc what is marked close-on-exec is closed by exec
  alignas(dirent64) char entries[4096];
  for (bool closed = true; closed;) {  // closing moves what is listed behind
    closed = false;
    ::lseek(listing, 0, SEEK_SET);
    for (long size; (size = ::syscall(SYS_getdents64, listing, entries, sizeof entries)) > 0;) {
      for (long at = 0; at < size;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        const unsigned fd = number_in(entry->d_name);
        if (fd < first || fd > last || fd == UINT_MAX || fd == static_cast<unsigned>(listing)) continue;
        closed |= ::close(static_cast<int>(fd)) == 0;
      }
    }
  }
  ::close(listing);
}

void close_all_but(std::span<const int> kept) {
  unsigned first = STDERR_FILENO + 1;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (fd < 0 || number < first) continue;
    if (number > first) close_between(first, number - 1);
    first = number + 1;
  }
  close_between(first, UINT_MAX);
}

Result<pid_t> spawn(const SpawnOrder& order) {
  std::vector<std::string> arguments = order.arguments, environment = order.environment;
  const OwnedFd nothing(order.input < 0 ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : -1);
  Prepared prepared{getpid(),
                    order.executable.c_str(),
                    pointers_to(arguments),
                    pointers_to(environment),
                    order.keep,
                    order.input < 0 ? nothing.get() : order.input};
  std::ranges::sort(prepared.kept);
  const pid_t pid = fork();
  if (pid == 0) become(order, prepared);
  if (pid < 0)
    return failure(Code::internal, std::string("no process can be started: ") + std::strerror(errno));
  return pid;
}

}  // namespace troupe
