#pragma once
// `troupe chat` on a terminal, and its question from a pipe.
#include <string>
#include "base/status.h"
#include "cli/chat_session.h"

#include "cli/command_line.h"

namespace troupe::cli {

/// Reads messages and /commands from the terminal until /quit or Ctrl-D. The exit code: 0, or 1 if a request
/// failed.
int converse(const Synopsis& synopsis, ChatSession& session);

/// The standard input until its end, without newlines at its end. too_large over 16 MiB.
Result<std::string> read_standard_input();

}  // namespace troupe::cli
