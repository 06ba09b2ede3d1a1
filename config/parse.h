#pragma once
// From a command line to Options. Values come, weakest first, from the defaults, the --config file, the
// environment (TROUPE_MAX_NUM_SEQS for --max-num-seqs, and FastDeploy's own names), the command line.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"

namespace troupe::config {

/// Where variables are read: the process's environment, or a map in a test.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The process's environment; the only place that reads it. Not while another thread changes it.
Environment process_environment();

struct Parsed {
  Options options;
  std::vector<std::string> warnings;  ///< one line each, to be printed before the start
  bool help = false;                  ///< --help was given; options are then incomplete
};

/// Reads the arguments after `serve`. Errors: invalid_argument (exit code 2), unsupported for a feature
/// that is not available yet (exit code 3). Touches no file but the one named by --config. The options
/// have passed validate().
Result<Parsed> parse(const std::vector<std::string>& arguments, const Environment& environment);

/// Exit code for a failed start: 2 for a wrong command line, 3 for what is not available yet, else 1.
int exit_code(const Status& status);

}  // namespace troupe::config
