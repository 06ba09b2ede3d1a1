#pragma once
#include <string>

namespace troupe::supervisor {

/// Prints a line for people. Dropped when the pipe is full: a blocked terminal must not stall the server.
void say(int fd, const std::string& text);

}  // namespace troupe::supervisor
