#pragma once
// The text processes, `troupe text`. What clients write is worked on here, away from the sockets and from the
// state of requests: those of the supervisor apply chat templates and turn text into tokens, those that the
// engine starts with --forms check and compile the forms of answers.
#include <string>
#include <vector>

namespace troupe {

/// The process itself; started by the supervisor or an engine. Returns its exit code.
int text_main(const std::vector<std::string>& words);

}  // namespace troupe
