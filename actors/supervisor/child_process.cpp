#include "actors/supervisor/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 declares its functions without C linkage
}

#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::supervisor {

namespace {

// Between fork and exec only async-signal-safe calls are allowed: another thread (the log's) may have held
// any lock at the fork. Everything that allocates was done before.
[[noreturn]] void become(pid_t parent, const char* executable, char* const argv[],
                         const std::vector<int>& keep_fds, int null_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, signal == SIGHUP || signal == SIGPIPE ? SIG_IGN : SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(null_fd, STDIN_FILENO);
  for (const int fd : keep_fds) fcntl(fd, F_SETFD, 0);
  execv(executable, argv);
  _exit(127);
}

}  // namespace

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
                                         const std::vector<int>& keep_fds) {
  std::vector<std::string> storage{"troupe"};
  storage.insert(storage.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : storage) argv.push_back(word.data());
  argv.push_back(nullptr);
  const ipc::Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t parent = getpid();

  ChildProcess child;
  child.pid_ = fork();
  if (child.pid_ == 0) become(parent, executable.c_str(), argv.data(), keep_fds, null_fd.get());
  if (child.pid_ < 0)
    return failure(Code::internal, std::string("no process can be started: ") + std::strerror(errno));
  child.pidfd_.reset(pidfd_open(child.pid_, 0));
  if (!child.pidfd_)
    return failure(Code::internal, std::string("a child cannot be watched: ") + std::strerror(errno));
  fcntl(child.pidfd_.get(), F_SETFD, FD_CLOEXEC);
  return child;
}

void ChildProcess::kill(int signal) const {
  if (running()) ::kill(pid_, signal);  // the pid is not reused before reap()
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
