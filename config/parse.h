#pragma once
// From a command line to Options. Values come, weakest first, from the defaults, the --config file, the
// environment (TROUPE_MAX_NUM_SEQS for --max-num-seqs, and FastDeploy's own names), the command line.
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/field.h"
#include "config/options.h"

namespace troupe::config {

/// Variables by name.
using Environment = std::map<std::string, std::string>;

/// A copy of the process's environment; the only place that reads it. Call it at start, from one thread.
Environment process_environment();

/// Sets the fields that a variable names, FastDeploy's first, then TROUPE_NAME. An empty one counts as unset,
/// but for a key, which it would silently switch off, it is an error. What a platform sets for a service that
/// is named like an option (config/platform_variables.h) is not read.
Status read_environment(const Environment& environment, const std::vector<Field>& fields);

/// Directory of the lock files and sockets of running servers: ${XDG_RUNTIME_DIR:-/tmp/troupe-$UID}/troupe.
std::string default_runtime_dir(const Environment& environment);

/// Directory of the files that the program keeps for later starts: ${XDG_CACHE_HOME:-$HOME/.cache}/troupe;
/// without a home default_runtime_dir().
std::string default_cache_dir(const Environment& environment);

/// The socket at which a service manager wants to be told of the start, as NOTIFY_SOCKET names it; else
/// empty.
std::string service_manager_socket(const Environment& environment);

/// Sets what the file of one of several models has: its model, and options that are about one model alone.
/// Errors: an option that is about the server, and what read_config_file() refuses.
Status read_model_file(const std::string& path, Options& options);

struct ParsedOptions {
  Options options;
  std::vector<std::string> warnings;  ///< one line each, to be printed before the start
  std::string
      help;  ///< the form that --help=FORM asks for, "text" without one; if set, options are incomplete
};

/// Reads the arguments after `serve`. Errors: invalid_argument (exit code 2), unsupported for a feature
/// that is not available yet (exit code 3). Reads no file but the one named by --config. The options
/// have passed validate().
Result<ParsedOptions> parse(const std::vector<std::string>& arguments, const Environment& environment);

/// Exit code for a failed start: 2 for a wrong command line, 3 for what is not available yet, else 1.
int exit_code(const Status& status);

}  // namespace troupe::config
