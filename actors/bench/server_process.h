#pragma once
// A `troupe serve` of its own for a bench: started on free ports with temporary directories, stopped by
// SIGTERM when the object ends. Loopback only.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::bench {

struct ServerMemory {
  double pss_mb = 0;  ///< proportional set size of all its processes
  double counted_mb =
      0;  ///< weights and activation arena, as the worker logged them; touched KV blocks are not in it
};

class ServerProcess {
 public:
  /// Runs the `troupe` beside the bench with these flags and waits until it is ready. Exits the bench with
  /// the server's output when it does not become so within `limit_s`.
  explicit ServerProcess(const std::vector<std::string>& flags, double limit_s = 120);
  ~ServerProcess();

  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  double start_s() const { return start_s_; }  ///< exec to ready
  double weight_bytes() const { return logged("weight_bytes"); }
  ServerMemory memory() const;

 private:
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
