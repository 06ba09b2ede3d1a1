#include "cli/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>  // before readline.h, which needs FILE
#include <cstdlib>
#include <memory>
#include <utility>

#include <readline/history.h>
#include <readline/readline.h>

#include "cli/terminal.h"

namespace troupe::cli {
namespace {

struct EditState {
  bool done = false;
  EditedLine line;
};
EditState edit_state;  // Readline's handler has no argument to carry it

void take_line(char* text) {
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  edit_state.done = true;
  if (text != nullptr) edit_state.line = {LineEnd::entered, text};
  ::rl_callback_handler_remove();  // here, so that Readline shows no second prompt
}

void abandon_line() {
  ::rl_free_line_state();
  ::rl_callback_sigcleanup();
  ::rl_replace_line("", 0);
  ::rl_callback_handler_remove();
  std::fputs("^C\n", ::rl_outstream);
  std::fflush(::rl_outstream);
  edit_state = {.done = true, .line = {LineEnd::interrupted, {}}};
}

}  // namespace

EditedLine edit_line(const char* prompt) {
  edit_state = {};
  const InterruptGuard guard;
  // Ctrl-C is let through only while waiting, so that none is lost between looking at the flag and the wait.
  sigset_t interrupt;
  sigset_t before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &interrupt, &before);

  ::rl_readline_name = "troupe";
  ::rl_catch_signals = 0;
  ::rl_outstream = ::isatty(STDOUT_FILENO) == 1 ? stdout : stderr;
  static const bool configured = [] {
    ::rl_variable_bind("enable-active-region", "off");  // a paste is not shown in reverse video
    // Once, before Readline looks at TERM: it switches this off for a terminal that knows no paste.
    return ::rl_variable_bind("enable-bracketed-paste", "on") == 0;
  }();
  static_cast<void>(configured);
  ::rl_callback_handler_install(prompt, take_line);
  // Tab would complete file names, and a pasted tab is text.
  ::rl_bind_key('\t', ::rl_insert);
  while (!edit_state.done) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::ppoll(&input, 1, nullptr, &before) < 0 && errno != EINTR) break;
    if (InterruptGuard::interrupted()) {
      abandon_line();
    } else if (input.revents != 0) {
      ::rl_callback_read_char();
    }
  }
  if (!edit_state.done) ::rl_callback_handler_remove();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::string& text = edit_state.line.text;
  if (text.find_first_not_of(" \t\n") != std::string::npos) ::add_history(text.c_str());
  return std::move(edit_state.line);
}

}  // namespace troupe::cli
