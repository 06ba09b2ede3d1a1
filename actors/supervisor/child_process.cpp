#include "actors/supervisor/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 declares its functions without C linkage
}

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/spawn.h"

namespace troupe::supervisor {

std::string to_string(const ChildExit& exit) {
  if (exit.signal == 0) return "exited with code " + std::to_string(exit.code);
  const char* name = sigdescr_np(exit.signal);
  return "was killed by signal " + std::to_string(exit.signal) + " (" + (name != nullptr ? name : "?") + ")";
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (!running()) return;
  kill(SIGKILL);
  reap();
}

Result<ChildProcess> ChildProcess::start(const std::string& executable, const std::vector<std::string>& words,
                                         const std::vector<int>& keep_fds,
                                         std::vector<std::string> environment, int output) {
  SpawnOrder order{.executable = executable,
                   .arguments = {"troupe"},
                   .environment = std::move(environment),
                   .keep = keep_fds,
                   .output = output,
                   .death_signal = SIGKILL,
                   .own_group = true,
                   .ignored_signals = {SIGHUP, SIGPIPE}};
  order.arguments.insert(order.arguments.end(), words.begin(), words.end());
  const auto pid = spawn(order);
  if (!pid.ok()) return pid.status();
  ChildProcess child;
  child.pid_ = *pid;
  child.pidfd_.reset(pidfd_open(child.pid_, 0));
  if (!child.pidfd_)
    return failure(Code::internal, std::string("a child cannot be watched: ") + std::strerror(errno));
  fcntl(child.pidfd_.get(), F_SETFD, FD_CLOEXEC);
  return child;
}

Result<ChildProcess> ChildProcess::start_with_socket(const std::string& executable,
                                                     std::vector<std::string> words,
                                                     std::vector<std::string> environment, ipc::Fd& socket) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failure(Code::unavailable, "there is no socket for the process that does it");
  socket.reset(ends[0]);
  const ipc::Fd other(ends[1]);  // closed here, so that the child's end closes with the child
  words.push_back("--fd=" + std::to_string(other.get()));
  return start(executable, words, {other.get()}, std::move(environment));
}

bool has_ended(int pidfd, std::chrono::milliseconds patience) {
  pollfd waited{pidfd, POLLIN, 0};
  return ::poll(&waited, 1, static_cast<int>(patience.count())) == 1;
}

Duration ChildProcess::processor_time() const {
  clockid_t clock{};
  timespec used{};
  if (!running() || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) return {};
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

void ChildProcess::kill(int signal) const {
  if (running()) ::kill(pid_, signal);  // the pid is not reused before reap()
}

ChildExit ChildProcess::look() const {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  return info.si_code == CLD_EXITED ? ChildExit{info.si_status, 0} : ChildExit{0, info.si_status};
}

ChildExit ChildProcess::reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  pidfd_.reset();
  return WIFSIGNALED(status) ? ChildExit{0, WTERMSIG(status)} : ChildExit{WEXITSTATUS(status), 0};
}

}  // namespace troupe::supervisor
