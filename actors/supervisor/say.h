#pragma once
#include <string>

namespace troupe::supervisor {

/// A line for a person. Dropped rather than waited for when nobody reads the pipe: a blocked terminal
/// never stalls a server.
void say(int fd, const std::string& text);

}  // namespace troupe::supervisor
