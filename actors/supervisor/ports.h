#pragma once
// The ports of one instance. Unset ones are chosen, all are locked against other instances, and the HTTP ones
// are bound. Either all are taken or none.
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "ipc/fd.h"
#include "ipc/rendezvous.h"

namespace troupe::supervisor {

struct Ports {
  ipc::PortLock http;                       ///< its socket answers `troupe status`
  std::vector<ipc::PortLock> metrics;       ///< none or one
  std::vector<ipc::PortLock> step_queues;   ///< one for each worker; their sockets answer decode instances
  std::vector<ipc::PortLock> cache_queues;  ///< likewise
  ipc::Fd listen;                           ///< HTTP; outlives every engine
  ipc::Fd metrics_listen;                   ///< -1 when /metrics is on the HTTP port
};

/// Whether the HTTP sockets listen, or are bound only, to learn that they could.
enum class Opening { listen, bind_only };

/// How many processes there are of each kind, beside the front.
struct ProcessCounts {
  int engines = 1;
  int ranks = 1;  ///< workers of each engine
  int texts = 0;
  int pictures = 0;  ///< media processes for pictures, of a model that sees
  int videos = 0;    ///< those for videos

  int workers() const { return engines * ranks; }
};

/// Takes every port for the workers. An HTTP port 0 and unset queue ports are chosen and written back
/// into the options; so are those of further ranks where only the first rank's is set. A port in use is an
/// error that names port and flag, and the pid when the owner is another instance.
Result<Ports> take_ports(config::Options& options, const ProcessCounts& counts,
                         Opening opening = Opening::listen);

}  // namespace troupe::supervisor
