#pragma once
// The signals that a supervisor takes through a descriptor.
#include "ipc/fd.h"

namespace troupe::supervisor {

struct TakenSignals {
  ipc::Fd fd;                  ///< of a signalfd: SIGTERM, SIGINT and, unless it was ignored, SIGHUP
  bool from_terminal = false;  ///< at the start: a terminal that has gone cannot be asked for

  /// Blocks them for the calling thread, and ignores SIGPIPE. Call it before any thread starts: one that has
  /// not inherited the mask could be the one that receives a signal.
  static TakenSignals take();
};

}  // namespace troupe::supervisor
