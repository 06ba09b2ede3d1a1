#pragma once
// How every subcommand that needs a running server finds it: by its port or, without one, as the only server
// that runs under this user. Where several run, a person at a terminal is asked; elsewhere it is an error
// that lists them.
#include <optional>
#include <string>

#include "base/log_options.h"
#include "base/status.h"
#include "config/field.h"

namespace troupe::cli {

struct WhichServer {
  std::optional<int> port;
  std::string runtime_dir;  ///< empty: the default directory
};

/// --port and --runtime-dir; they point into `which`.
config::Field port_field(WhichServer& which);
config::Field runtime_dir_field(WhichServer& which);

struct RunningServer {
  int port = 0;
  std::string url;
  LogOptions logs;     ///< only its directories, absolute
  std::string status;  ///< as supervisor::query_status() gives it
};

/// Errors: not_found when none runs or none has that port, invalid_argument with their list when several run
/// and there is no terminal to ask at, timeout when it does not answer.
Result<RunningServer> find_running_server(const WhichServer& which);

}  // namespace troupe::cli
