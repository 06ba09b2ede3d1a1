#include "cli/bench/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/owned_fd.h"
#include "base/spawn.h"
#include "config/child_environment.h"
#include "http/client/client.h"
#include "ipc/rendezvous.h"

namespace troupe::bench {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

double pss_mb(pid_t pid) {
  std::istringstream lines(read_file("/proc/" + std::to_string(pid) + "/smaps_rollup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Pss:")) return std::atof(line.c_str() + 4) / 1024;
  }
  return 0;
}

std::string runtime_directory(const std::string& directory) { return directory + "/troupe"; }

/// `troupe serve` on a port that the system chooses, with its output in a file and its runtime folder in
/// `directory`. It is told to end when the caller dies.
Result<pid_t> start_server(const std::string& directory, const std::string& output,
                           const std::vector<std::string>& flags) {
  SpawnOrder order;
  order.executable = binary_directory() + "/troupe";
  order.arguments = {order.executable, "serve", "--port", "0", "--log-dir", directory + "/log"};
  order.arguments.insert(order.arguments.end(), flags.begin(), flags.end());
  order.arguments.insert(order.arguments.end(), {"--runtime-dir", runtime_directory(directory)});
  order.environment = config::child_environment(config::ChildKind::server, config::process_environment());
  const OwnedFd written(::open(output.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  order.output = written.get();
  order.death_signal = SIGTERM;
  return spawn(order);
}

/// The port of the only server in its runtime folder; 0 while it has none.
int port_of(const std::string& directory) {
  const auto owners = ipc::live_owners(runtime_directory(directory), ipc::PortKind::http);
  return owners.empty() ? 0 : owners.front().port;
}

bool is_ready(int port) {
  if (port == 0) return false;
  const auto answer = http::Client({.port = port}).request("GET", "/health/ready");
  return answer.ok() && answer->status == 200;
}

}  // namespace

std::string binary_directory() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const std::vector<std::string>& flags,
                                                            double limit_s) {
  char pattern[] = "/tmp/troupe-bench-XXXXXX";
  if (::mkdtemp(pattern) == nullptr) return failure(Code::unavailable, "no folder can be made in /tmp");
  std::unique_ptr<ServerProcess> server(new ServerProcess);
  server->directory_ = pattern;
  const std::string output = server->directory_ + "/output";
  const std::int64_t begin = now_ns();
  const auto started = start_server(server->directory_, output, flags);
  if (!started.ok()) return started.status();
  server->pid_ = *started;
  while (!is_ready(server->port_)) {
    const bool over = ::waitpid(server->pid_, nullptr, WNOHANG) == server->pid_;
    if (over) server->pid_ = -1;
    if (over || static_cast<double>(now_ns() - begin) * 1e-9 > limit_s) {
      return failure(Code::unavailable, "the server did not become ready:\n" + read_file(output));
    }
    if (server->port_ == 0) server->port_ = port_of(server->directory_);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  server->start_s_ = static_cast<double>(now_ns() - begin) * 1e-9;
  return server;
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

/// The last value of a key in the worker's log.
double ServerProcess::logged(const std::string& key) const {
  const std::string text = read_file(directory_ + "/log/worker-0/worker-0.log");
  const std::size_t at = text.rfind(" " + key + "=");
  return at == std::string::npos ? 0 : std::atof(text.c_str() + at + key.size() + 2);
}

std::vector<pid_t> ServerProcess::processes() const {
  std::vector<pid_t> out{pid_};
  const std::string path = "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children";
  std::istringstream children(read_file(path));
  for (pid_t child; children >> child;) out.push_back(child);
  return out;
}

ServerMemory ServerProcess::memory() const {
  ServerMemory out;
  for (const pid_t pid : processes()) out.pss_mb += pss_mb(pid);
  out.counted_mb = (logged("weight_bytes") + logged("arena_bytes")) / (1 << 20);
  return out;
}

}  // namespace troupe::bench
