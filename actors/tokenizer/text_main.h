#pragma once
// The text process, `troupe text`: applies chat templates and turns text into tokens. What clients write is
// worked on here, away from the sockets and from the state of requests.
#include <string>
#include <vector>

namespace troupe {

/// The process itself; started by the supervisor. Returns its exit code.
int text_main(const std::vector<std::string>& words);

}  // namespace troupe
