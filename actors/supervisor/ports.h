#pragma once
// The ports of one instance: chosen where they were left open, locked against other instances, and, where
// HTTP is spoken, bound. All or nothing.
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/fd.h"
#include "ipc/rendezvous.h"

namespace troupe::supervisor {

struct Ports {
  ipc::PortLock http;                       ///< its socket answers `troupe status`
  std::vector<ipc::PortLock> metrics;       ///< none or one
  std::vector<ipc::PortLock> step_queues;   ///< one for each rank; held so that no other instance takes the port
  std::vector<ipc::PortLock> cache_queues;  ///< likewise
  ipc::Fd listen;                           ///< HTTP; outlives every engine
  ipc::Fd metrics_listen;                   ///< -1 when /metrics is on the HTTP port
};

/// Takes every port for `ranks` workers and writes the chosen numbers back into the options: an HTTP port
/// 0 and unset queue ports are chosen. A taken one is an error that names port and flag, and the pid when
/// the owner is an instance of ours.
Result<Ports> take_ports(config::Options& options, int ranks);

}  // namespace troupe::supervisor
