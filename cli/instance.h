#pragma once
// Which of this machine's running servers a subcommand means.
#include <map>
#include <optional>
#include <string>

#include "base/status.h"
#include "config/field.h"

namespace troupe::cli {

/// The HTTP port of the server that is meant: `asked`, or the only one that runs. Of several, a person at a terminal is
/// asked which; otherwise invalid_argument lists them. Nothing when none runs.
Result<std::optional<int>> choose_port(const std::string& runtime_dir, std::optional<int> asked);

/// The flag --runtime-dir, and where servers are found without it.
config::Field runtime_dir_field(std::string& runtime_dir);
std::string directory_or_default(const std::string& runtime_dir);

/// What a client needs to know of a server.
struct Instance {
  int port = 0;
  bool tls = false;
  std::string log_dir;
  std::map<std::string, std::string> actor_log_dirs;
};

/// As choose_port(); a server that does not answer is an error.
Result<std::optional<Instance>> choose_instance(const std::string& runtime_dir, std::optional<int> asked);

}  // namespace troupe::cli
