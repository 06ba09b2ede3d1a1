#pragma once
// The socket between the front and one `troupe media` process. Both ends are the supervisor's and outlive
// either process: the next one gets the same end.
#include "actors/supervisor/child_process.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

class MediaSocket {
 public:
  /// The front's end says of every message which process has sent it (SCM_CREDENTIALS).
  static Result<MediaSocket> make();

  int front_end() const { return front_.get(); }
  int process_end() const { return process_.get(); }

  /// Tells the front how the process has ended, behind all that it has said, and drops requests that it has
  /// not read. To be called before the process is waited for: until the front knows, its pid is no other
  /// process's.
  void process_ended(const ChildExit& exit) const;

  /// Drops what the front that has ended has not read or has asked for.
  void front_ended() const;

 private:
  ipc::Fd front_, process_;
};

}  // namespace troupe::supervisor
