#pragma once
// Reads messages from a terminal with line editing and a history, by GNU Readline.
#include <string>

namespace troupe::cli {

enum class LineEnd { entered, interrupted, closed };

struct EditedLine {
  LineEnd end = LineEnd::closed;
  std::string text;  ///< empty unless entered; has newlines if several lines were pasted at once
};

/// Shows `prompt` and edits one message. Ctrl-C abandons the line (interrupted); Ctrl-D on an empty line and
/// a terminal that is gone are `closed`. A message that is not blank is added to the history, which lives as
/// long as the process. For the main thread; the standard input must be a terminal.
EditedLine edit_line(const char* prompt);

}  // namespace troupe::cli
