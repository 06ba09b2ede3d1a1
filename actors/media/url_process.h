#pragma once
// The server's side of `troupe fetch`, which fetches a file that a client names by URL; and files of the
// directory from which clients may name them.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "ipc/fd.h"

namespace troupe {

struct UrlSetup {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> hosts;  ///< --allowed-media-domains; empty: nothing is fetched
  std::string directory;           ///< --allowed-media-path; empty: no file is read
  std::uint64_t bytes = std::uint64_t{64} << 20;
  std::chrono::milliseconds time{5'000};
};

/// The bytes behind an http://, https:// or file:// URL, in a memory file that nobody can change. Waits for
/// at most a second longer than the setup's time; `give_up` becoming true ends the wait. Messages continue
/// the name of the URL's field:
///   invalid_argument  url_not_allowed, url_failed
///   unavailable       memory or processes are lacking now
Result<ipc::Fd> fetch_url(const UrlSetup& setup, const std::string& url, const std::atomic<bool>& give_up);

}  // namespace troupe
