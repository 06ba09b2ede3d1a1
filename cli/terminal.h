#pragma once
// What the subcommands ask of a terminal: whether there is one, its modes while an answer streams, and
// Ctrl-C.
#include <termios.h>

#include <csignal>
#include <string>

namespace troupe::cli {

/// True if escape sequences may be written to `descriptor`: it is a terminal other than TERM=dumb, and
/// NO_COLOR is unset or empty.
bool may_style(int descriptor);

/// True if a line on `descriptor` can be written over: it is a terminal other than TERM=dumb.
bool may_move_cursor(int descriptor);

/// Columns of the terminal behind `descriptor`, 20 to `most`; `most` where that is no terminal.
int columns_of(int descriptor, int most);

/// `text` wrapped to the columns of the terminal behind `descriptor`, lines after the first indented by two;
/// as it is where that is no terminal.
std::string wrapped_for(int descriptor, const std::string& text);

/// Prints to standard output; where that is a terminal, through $PAGER, by default less if it is installed.
void print_paged(const std::string& text);

/// While one exists, Ctrl-C sets a flag instead of ending the program. They may nest.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// True after Ctrl-C since the newest guard was made.
  static bool interrupted();

 private:
  struct sigaction before_ {};
};

/// While one exists, text typed at the standard input is not echoed; it stays queued for the next read. Does
/// nothing if that is no terminal.
class EchoGuard {
 public:
  EchoGuard();
  ~EchoGuard();
  EchoGuard(const EchoGuard&) = delete;
  EchoGuard& operator=(const EchoGuard&) = delete;

 private:
  termios before_{};
  bool changed_ = false;
};

}  // namespace troupe::cli
