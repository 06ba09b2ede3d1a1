#pragma once
// A `troupe serve` of its own for a bench: started on free ports with temporary directories, stopped by
// SIGTERM when the object ends. Loopback only.
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace troupe::bench {

struct ServerMemory {
  double pss_mb = 0;  ///< proportional set size of all its processes
  /// Weights and activation arena, as the worker logged them; KV blocks in use are not in it.
  double counted_mb = 0;
};

class ServerProcess {
 public:
  /// Runs the `troupe` beside the bench with these flags and waits until it is ready. When it ends before, or
  /// is not ready within `limit_s` (it is stopped then): unavailable, with what it printed.
  static Result<std::unique_ptr<ServerProcess>> start(const std::vector<std::string>& flags,
                                                      double limit_s = 120);
  ~ServerProcess();

  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  double start_s() const { return start_s_; }  ///< exec to ready
  double weight_bytes() const { return logged("weight_bytes"); }
  ServerMemory memory() const;

 private:
  ServerProcess() = default;

  double logged(const std::string& key) const;
  std::vector<pid_t> processes() const;

  pid_t pid_ = -1;
  int port_ = 0;
  double start_s_ = 0;
  std::string directory_;
};

/// The folder that holds the bench, `troupe` and models/.
std::string binary_directory();

}  // namespace troupe::bench
