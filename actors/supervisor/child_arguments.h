#pragma once
// What a child process is handed: descriptors that it inherits, named by number on its command line
//   troupe engine --options-fd=3 --control-fd=4 --listen-fd=5 --step-fd=6 --cache-fd=7
//   troupe worker --options-fd=3 --control-fd=4 --step-fd=6 --cache-fd=7 --rank=0
// and the resolved options as JSON in a sealed memory file, so that no secret is seen in a process list.
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

struct ChildArguments {
  int options_fd = -1;
  int control_fd = -1;
  int listen_fd = -1;   ///< engine
  int metrics_fd = -1;  ///< engine, with a metrics port of its own
  int step_fd = -1;
  int cache_fd = -1;
  int rank = 0;
};

std::vector<std::string> to_words(const ChildArguments& arguments);

/// For the child's main: reads the words after "engine" or "worker" and marks the descriptors
/// close-on-exec. invalid_argument when one that every child needs is missing or not open.
Result<ChildArguments> parse_child_arguments(const std::vector<std::string>& words);

/// A sealed memory file that holds the options; each child reads it from its start.
Result<ipc::Fd> make_options_file(const config::Options& options);
Result<config::Options> read_options_file(int fd);

}  // namespace troupe::supervisor
