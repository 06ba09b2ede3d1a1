#include "actors/supervisor/ports.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>

namespace troupe::supervisor {

namespace {

constexpr int kBacklog = 1024;
// How long to wait for the children of a killed supervisor: the kernel ends them, which takes a while for a
// large process.
constexpr Duration kEngineExitTime = std::chrono::seconds(5);

struct Listener {
  ipc::Fd socket;
  int port = 0;
};

Result<Listener> listen_on(const std::string& host, int port, const char* flag, Opening opening) {
  const std::string given = (std::string(flag) == "--listen" ? "--listen " : "--host ") + host;
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return invalid(given + " is not an address of this machine: " + gai_strerror(error), "host");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Listener listener;
  listener.socket.reset(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!listener.socket || setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(listener.socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      (opening == Opening::listen && listen(listener.socket.get(), kBacklog) != 0)) {
    if (errno == EADDRINUSE) {
      return failure(Code::unavailable, "port " + std::to_string(port) + " (" + flag +
                                            ") is in use by another process; stop it or choose another port");
    }
    return invalid(given + " with port " + std::to_string(port) + " (" + flag +
                   ") cannot be listened on: " + std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  // The port is at the same place in both address families.
  listener.port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return listener;
}

// Listens at the port of a lock. Retries while the engine of a supervisor that was just killed may still hold
// it.
Result<Listener> listen_at(const ipc::PortLock& lock, const std::string& host, Opening opening,
                           const char* flag = nullptr) {
  const TimePoint end = Clock::now() + kEngineExitTime;
  for (;;) {
    auto made = listen_on(host, lock.port(), flag != nullptr ? flag : ipc::flag_of(lock.kind()), opening);
    const bool in_use = !made.ok() && made.status().code == Code::unavailable;
    if (!in_use || !lock.taken_over() || Clock::now() > end) return made;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Locks the first free port above `after`; no TCP socket is opened for it.
Result<ipc::PortLock> choose(const std::string& dir, ipc::PortKind kind, int after,
                             const std::set<int>& used) {
  constexpr int kTries = 1000;
  Status last;
  for (int port = after + 1; port <= std::min(after + kTries, 65535); ++port) {
    if (used.contains(port)) continue;
    auto lock = ipc::PortLock::acquire(dir, kind, port);
    if (lock.ok() || lock.status().code != Code::unavailable) return lock;
    last = lock.status();
  }
  return failure(Code::unavailable, std::string("no free port for ") + ipc::flag_of(kind) +
                                        " was found above " + std::to_string(after) +
                                        (last.ok() ? "" : "; the last: " + last.message));
}

/// The ports of an engine's further ranks are chosen so far above its own: what is named for the next
/// instance is most often just behind what was named for this one.
constexpr int kGap = 1000;

/// Of several engines a list may name one port for each: that of its first rank.
Status take_queues(const std::string& dir, ipc::PortKind kind, const ProcessCounts& counts, int after,
                   std::set<int>& used, std::vector<int>& numbers, std::vector<ipc::PortLock>& locks) {
  const int given = static_cast<int>(numbers.size()), all = counts.workers();
  if (given > 1 && given != all && given != counts.engines) {
    const std::string engines = counts.engines == 1 ? "" : std::to_string(counts.engines) + " engines with ";
    return invalid(std::string(ipc::flag_of(kind)) + " names " + std::to_string(given) + " ports for " +
                   engines + std::to_string(all) + " workers; one is needed, or one for each" +
                   (counts.engines > 1 && counts.ranks > 1 ? " engine or worker" : ""));
  }
  if (given == 1) after = numbers.front();
  std::vector<int> taken;
  int last = after;  // of the engines' first ranks
  for (int worker = 0; worker < all; ++worker) {
    const bool first = worker % counts.ranks == 0;
    const bool each = given == all || first;
    const int place = given == all ? worker : worker / counts.ranks;
    const auto number = static_cast<std::size_t>(place);
    const int above =
        first ? last : std::max(taken.back(), given > 0 && last < 65535 - 2 * kGap ? last + kGap : last);
    auto lock = !each || place >= given ? choose(dir, kind, above, used)
                                        : ipc::PortLock::acquire(dir, kind, numbers[number]);
    if (!lock.ok()) return lock.status();
    if (first) last = lock->port();
    used.insert(lock->port());
    taken.push_back(lock->port());
    locks.push_back(std::move(*lock));
  }
  numbers = std::move(taken);
  return {};
}

}  // namespace

Result<Ports> take_ports(config::Options& options, const ProcessCounts& counts, Opening opening) {
  using ipc::PortKind;
  const std::string& dir = options.process.runtime_dir;
  config::HttpOptions& http = options.http;
  // The lock is taken before the socket, so that the error names the pid of the other instance. If the system
  // chooses the port, its number is known only after bind().
  Listener listener;
  if (http.port == 0) {
    auto made = listen_on(http.host, 0, "--port", opening);
    if (!made.ok()) return made.status();
    listener = std::move(*made);
    http.port = listener.port;
  }
  auto http_lock = ipc::PortLock::acquire(dir, PortKind::http, http.port);
  if (!http_lock.ok()) return http_lock.status();
  if (!listener.socket) {
    auto made = listen_at(*http_lock, http.host, opening, options.takes_fronts() ? "--listen" : nullptr);
    if (!made.ok()) return made.status();
    listener = std::move(*made);
  }
  Ports ports{std::move(*http_lock), {}, {}, {}, std::move(listener.socket), {}};

  std::set<int> used{http.port};
  if (http.metrics_port && *http.metrics_port != http.port) {
    auto lock = ipc::PortLock::acquire(dir, PortKind::metrics, *http.metrics_port);
    if (!lock.ok()) return lock.status();
    auto metrics = listen_at(*lock, http.host, opening);
    if (!metrics.ok()) return metrics.status();
    ports.metrics.push_back(std::move(*lock));
    ports.metrics_listen = std::move(metrics->socket);
    used.insert(*http.metrics_port);
  }
  config::ProcessOptions& process = options.process;
  for (const int port : process.engine_worker_queue_ports) used.insert(port);
  for (const int port : process.cache_queue_ports) used.insert(port);
  for (const int port : options.split.prefill_ports) used.insert(port);  // others'
  if (Status s = take_queues(dir, PortKind::engine_worker_queue, counts, http.port, used,
                             process.engine_worker_queue_ports, ports.step_queues);
      !s.ok()) {
    return s;
  }
  if (Status s = take_queues(dir, PortKind::cache_queue, counts, http.port, used, process.cache_queue_ports,
                             ports.cache_queues);
      !s.ok()) {
    return s;
  }
  if (opening == Opening::listen) ipc::remove_left_files(dir);
  return ports;
}

}  // namespace troupe::supervisor
