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

/// Sets `fields` from the environment and the arguments, and collects the other words. A value means that
/// there is nothing more to do, and is the exit code: --help was printed, or an error on standard error.
std::optional<int> read_command_line(int argc, char** argv, const Synopsis& synopsis,
                                     const std::vector<config::Field>& fields,
                                     std::vector<std::string>& words);

/// Prints "troupe NAME: message" to standard error.
void complain(const Synopsis& synopsis, const std::string& message);
/// The same, and the exit code that goes with the status.
int fail(const Synopsis& synopsis, const Status& status);

/// Output for a terminal: control characters other than newline and tab are left out, so that what a model
/// or a log says cannot steer the terminal.
std::string printable(std::string_view text);

}  // namespace troupe::cli
