#pragma once
// The server's side of `troupe fetch`, which fetches a file that a client names by URL; and files of the
// directory from which clients may name them.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe {

/// Bytes of files that are on their way, of all fetches together.
struct UrlMemory {
  std::uint64_t most = 0;
  std::atomic<std::uint64_t> used{0};
};

struct UrlSetup {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> hosts;                 ///< --allowed-media-domains; empty: nothing is fetched
  std::string directory;                          ///< --allowed-media-path; empty: no file is read
  std::uint64_t bytes = std::uint64_t{64} << 20;  ///< of a file
  std::chrono::milliseconds time{5'000};
  std::shared_ptr<UrlMemory> memory{};  ///< null: unbounded
};

/// The bytes behind an http://, https:// or file:// URL, in a memory file that nobody can change. Waits for
/// at most a second longer than the setup's time; `give_up` becoming true ends the wait. Messages continue
/// the name of the URL's field:
///   invalid_argument  url_not_allowed, url_failed
///   unavailable       memory or processes are lacking now
///   overloaded        media_memory_full: the setup's memory is in use by other fetches
Result<ipc::Fd> fetch_url(const UrlSetup& setup, const std::string& url, const std::atomic<bool>& give_up);

}  // namespace troupe
