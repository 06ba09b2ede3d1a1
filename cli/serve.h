#pragma once
#include <string>
#include <vector>

namespace troupe {

/// `troupe serve`: reads the command line, checks everything, and becomes the supervisor process. Returns
/// the exit code: 0 after a signal, 2 for a wrong command line, 3 for what is not available yet, else 1.
int serve_main(const std::vector<std::string>& arguments);

/// `troupe engine --listen HOST:PORT`: the same without HTTP, for fronts on other machines.
int serve_engine_main(const std::vector<std::string>& arguments);

}  // namespace troupe
