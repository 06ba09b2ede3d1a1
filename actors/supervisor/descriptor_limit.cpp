#include "actors/supervisor/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::supervisor {
namespace {

// Of the engine: logs, rings, event loops, the grammar process; and connections beyond the limit that may ask
// for health (16 for each of up to 4 threads; more threads need more).
constexpr rlim_t kOwn = 192;
constexpr rlim_t kPerIoThread = 32;
constexpr rlim_t kFewestConnections = 8;

}  // namespace

Result<std::string> raise_descriptor_limit(config::Options& options) {
  int& connections = options.limits.max_connections;
  const rlim_t own = kOwn + kPerIoThread * static_cast<rlim_t>(options.http.io_threads);
  const rlim_t needed = own + static_cast<rlim_t>(connections);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return failure(Code::internal,
                   std::string("the limit on open files cannot be read: ") + std::strerror(errno));
  }
  if (limit.rlim_cur >= needed) return std::string();
  const rlim_t hard = limit.rlim_max;
  const std::string remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd)";
  if (hard < own + kFewestConnections) {
    return failure(Code::unavailable,
                   "the hard limit on open files is " + std::to_string(hard) + "; a server needs " +
                       std::to_string(own + kFewestConnections) + " at least, and " + std::to_string(needed) +
                       " for --max-connections " + std::to_string(connections) + ": " + remedy);
  }
  limit.rlim_cur = std::min(needed, hard);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return failure(Code::internal, "the limit on open files cannot be raised to " +
                                       std::to_string(limit.rlim_cur) + ": " + std::strerror(errno));
  }
  if (hard >= needed) return std::string();
  const int asked = std::exchange(connections, static_cast<int>(hard - own));
  return "--max-connections " + std::to_string(asked) + " needs " + std::to_string(needed) +
         " open files, the hard limit is " + std::to_string(hard) + ": at most " +
         std::to_string(connections) + " connections are served; " + remedy;
}

}  // namespace troupe::supervisor
