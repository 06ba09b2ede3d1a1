#pragma once
// How an instance is found by its port numbers. Each port is a pair of files in the runtime directory:
// KIND-PORT.lock holds the owner's pid and is locked by it (fcntl, F_OFD_SETLK); KIND-PORT.sock is its unix
// socket. At the HTTP port's socket the owner answers `troupe status`, at that of an engine-worker-queue port
// a decode instance that wants its prompts computed; the others only keep the port. The directory has mode
// 0700 and its owner is checked; the peer's uid is checked as well.
//
// The lock says whether the owner is alive, not the file: files of a dead owner are taken over. The owner
// removes both files when it releases the port; if it was killed they stay until the next instance starts, on
// whatever port.
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

/// Creates the directory (and its parents) with mode 0700, or checks that only this user can use it.
Status prepare_runtime_dir(const std::string& runtime_dir);

class PortLock {
 public:
  /// Takes the port for this process and listens at its socket (SOCK_STREAM, non-blocking). Code::unavailable
  /// when a live process holds it; the message names port, flag and pid.
  static Result<PortLock> acquire(const std::string& runtime_dir, PortKind kind, int port);

  PortLock(PortLock&& other) noexcept;
  PortLock& operator=(PortLock&& other) noexcept;
  ~PortLock() { release(); }

  PortKind kind() const { return kind_; }
  int port() const { return port_; }
  /// True if the previous owner died without releasing it: processes it started may still be ending.
  bool taken_over() const { return taken_over_; }
  int listen_fd() const { return socket_.get(); }

  /// Accepts one waiting client of the same user (non-blocking, close-on-exec). An invalid Fd when none
  /// waits or the peer is another user.
  Fd accept_peer() const;

  /// Removes both files. The destructor does the same. A fork of the owner removes nothing.
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

/// Removes the files of owners that are dead, of every kind and port. Those of a port at which something
/// still listens stay: it may be a child of the dead owner that is ending, which the next owner of the port
/// has to wait for.
void remove_left_files(const std::string& runtime_dir);

struct PortOwner {
  int port = 0;
  int pid = 0;
};
/// Live owners of one kind of port, by port. A missing directory has none.
std::vector<PortOwner> live_owners(const std::string& runtime_dir, PortKind kind);

/// Connects to a port's socket; not_found if no process listens there, timeout when the owner does not
/// accept.
Result<Fd> connect_port(const std::string& runtime_dir, PortKind kind, int port, TimePoint deadline);

/// Ok when the process at the other end of a unix socket runs under our uid.
Status check_same_user(int socket);

}  // namespace troupe::ipc
