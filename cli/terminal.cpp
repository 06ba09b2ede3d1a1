#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/owned_fd.h"
#include "base/spawn.h"
#include "config/child_environment.h"
#include "config/parse.h"
#include "config/wrap.h"

namespace troupe::cli {
namespace {

std::atomic<bool> interrupt_seen{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // it is set by a signal handler

std::string variable(const char* name) {
  const auto environment = config::process_environment();
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

/// Starts `command` in a shell and opens its input. -1, and no input, when that fails.
pid_t start_pager(const std::string& command, std::FILE*& input) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  const OwnedFd reader(ends[0]);
  OwnedFd writer(ends[1]);
  SpawnOrder order;
  order.executable = "/bin/sh";
  order.arguments = {"sh", "-c", command};
  order.environment = config::child_environment(config::ChildKind::pager, config::process_environment());
  order.input = reader.get();
  const auto pid = spawn(order);
  if (!pid.ok()) return -1;
  input = ::fdopen(writer.release(), "w");
  return *pid;
}

}  // namespace

bool may_move_cursor(int descriptor) { return ::isatty(descriptor) == 1 && variable("TERM") != "dumb"; }

bool may_style(int descriptor) { return may_move_cursor(descriptor) && variable("NO_COLOR").empty(); }

int columns_of(int descriptor, int most) {
  constexpr int kNarrowest = 20, kUnknown = 80;
  winsize size = {};
  if (::isatty(descriptor) != 1 || ::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return most;
  return std::clamp<int>(size.ws_col == 0 ? kUnknown : size.ws_col, kNarrowest, most);
}

std::string wrapped_for(int descriptor, const std::string& text) {
  constexpr int kUnbounded = 1 << 30;
  const int columns = columns_of(descriptor, kUnbounded);
  return columns == kUnbounded ? text : config::wrap(text, 2, columns);
}

void print_paged(const std::string& text) {
  std::FILE* pager = nullptr;
  pid_t pid = -1;
  if (may_move_cursor(STDOUT_FILENO)) {
    const std::string named = variable("PAGER");
    pid = start_pager(
        named.empty() ? "if command -v less >/dev/null; then exec less -FRX; else exec cat; fi" : named,
        pager);
  }
  if (pager == nullptr) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::signal(SIGPIPE, SIG_IGN);  // a pager may be left before its end
  std::fputs(text.c_str(), pager);
  std::fclose(pager);
  constexpr int kNotFound = 127;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) std::fputs(text.c_str(), stdout);
}

InterruptGuard::InterruptGuard() {
  interrupt_seen = false;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupt_seen = true; };  // without SA_RESTART: waits end with EINTR
  ::sigaction(SIGINT, &action, &before_);
}

InterruptGuard::~InterruptGuard() { ::sigaction(SIGINT, &before_, nullptr); }

bool InterruptGuard::interrupted() { return interrupt_seen; }

EchoGuard::EchoGuard() {
  if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios silent = before_;
  // Without ICANON too: a line that is complete before the editor reads could no longer be edited.
  silent.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  changed_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &silent) == 0;
}

EchoGuard::~EchoGuard() {
  if (changed_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

}  // namespace troupe::cli
