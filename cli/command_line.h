#pragma once
// What the subcommands share: reading arguments by a list of fields, --help, and error lines.
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"

namespace troupe::cli {

struct Synopsis {
  const char* name;
  const char* summary;   ///< one line
  const char* usage;     ///< "troupe logs [ACTOR] [OPTION…]"
  const char* examples;  ///< lines, indented by two
};

/// Sets `fields` from the environment and the arguments, and collects the other words. A returned value is
/// the exit code to end with: --help or an error was printed.
std::optional<int> read_command_line(int argc, char** argv, const Synopsis& synopsis,
                                     const std::vector<config::Field>& fields,
                                     std::vector<std::string>& words);

/// Prints "troupe NAME: message" to standard error.
void complain(const Synopsis& synopsis, const std::string& message);
/// Prints the status in the same way and returns its exit code.
int fail(const Synopsis& synopsis, const Status& status);

/// `text` without control characters other than newline and tab, so that the text of a model or a log cannot
/// control the terminal.
std::string printable(std::string_view text);

}  // namespace troupe::cli
