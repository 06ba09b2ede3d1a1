#pragma once
// How an instance is found by its port numbers. A port of ours that carries no TCP traffic is a pair of
// files in the runtime directory: KIND-PORT.lock, which its owner has locked (fcntl, F_OFD_SETLK) and holds
// its pid, and KIND-PORT.sock, a unix socket at which the owner answers. The directory is 0700 and its owner
// is checked, so that nobody else gets in; the peer's uid is checked all the same.
//
// The lock, not the file, says who is alive: a file whose owner died is simply taken over. Both vanish when
// the owner releases them, and are harmless when it could not.
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe::ipc {

enum class PortKind { http, metrics, engine_worker_queue, cache_queue };

/// "engine-worker-queue"
const char* name_of(PortKind kind);
/// "--engine-worker-queue-port"; "--port" for http.
const char* flag_of(PortKind kind);

/// Creates the directory (and its parents) with mode 0700, or checks that it is ours alone.
Status prepare_runtime_dir(const std::string& runtime_dir);

class PortLock {
 public:
  /// Takes the port for this process and listens at its socket (SOCK_STREAM, non-blocking). Held by a
  /// live process: Code::unavailable, naming port, flag and pid.
  static Result<PortLock> acquire(const std::string& runtime_dir, PortKind kind, int port);

  PortLock(PortLock&& other) noexcept;
  PortLock& operator=(PortLock&& other) noexcept;
  ~PortLock() { release(); }

  PortKind kind() const { return kind_; }
  int port() const { return port_; }
  /// Whether the owner before died without releasing it: what it started may still be about to end.
  bool taken_over() const { return taken_over_; }
  int listen_fd() const { return socket_.get(); }

  /// Accepts one waiting client of the same user (non-blocking, close-on-exec). An invalid Fd when none
  /// waits or the peer was somebody else.
  Fd accept_peer() const;

  /// Removes both files. Also done by the destructor; never in a fork of the owner.
  void release();

 private:
  PortLock() = default;

  PortKind kind_ = PortKind::http;
  int port_ = 0;
  int owner_pid_ = 0;
  bool taken_over_ = false;
  std::string stem_;  // path without .lock and .sock
  Fd lock_;
  Fd socket_;
};

struct PortOwner {
  int port = 0;
  int pid = 0;
};
/// Live owners of one kind of port, by port. A missing directory has none.
std::vector<PortOwner> live_owners(const std::string& runtime_dir, PortKind kind);

/// Connects to a port's socket; not_found when nobody listens there, timeout when its owner accepts nobody.
Result<Fd> connect_port(const std::string& runtime_dir, PortKind kind, int port, TimePoint deadline);

/// Ok when the process at the other end of a unix socket runs under our uid.
Status check_same_user(int socket);

}  // namespace troupe::ipc
