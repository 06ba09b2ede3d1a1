#include "cli/terminal.h"

#include <unistd.h>

#include <atomic>
#include <string>

#include "config/parse.h"

namespace troupe::cli {
namespace {

std::atomic<bool> interrupt_seen{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // it is set by a signal handler

}  // namespace

bool may_style(int descriptor) {
  if (::isatty(descriptor) != 1) return false;
  const auto environment = config::process_environment();
  const auto value = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  return value("NO_COLOR").empty() && value("TERM") != "dumb";
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
