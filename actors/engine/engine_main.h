#pragma once
// The child processes of a server. Each is started by the supervisor with inherited descriptors
// (actors/supervisor/child_arguments.h) and ends when its control channel does.
#include <string>
#include <vector>

namespace troupe {

/// `troupe front`: HTTP, and the actors between it and the engine. Returns the exit code.
int front_main(const std::vector<std::string>& arguments);

/// `troupe engine`: the actors that decide what the workers run. Returns the exit code.
int engine_main(const std::vector<std::string>& arguments);

/// `troupe worker`: one rank; weights, KV memory, the model. Returns the exit code.
int worker_main(const std::vector<std::string>& arguments);

}  // namespace troupe
