#pragma once
// A client for benches: many event streams over loopback from one thread, counted and timed. Bounded in
// streams and in time; it knows just enough HTTP to read this server's answers.
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::bench {

struct StreamResult {
  bool ok = false;
  int status = 0;
  std::int64_t sent_ns = 0;
  std::int64_t first_ns = 0;  ///< first event that carries text
  std::int64_t last_ns = 0;   ///< end of the answer
  int events = 0;             ///< that carry text
  int tokens = 0;             ///< completion_tokens of the usage, where the answer tells it
};

struct LoadResult {
  std::vector<StreamResult> streams;
  double seconds = 0;  ///< first request sent to last byte read
  std::int64_t events = 0;
  bool all_ok() const;
};

/// Sends every body at once, each on a connection of its own, to POST /v1/completions or `path` on
/// 127.0.0.1:port, and reads all answers. Gives up after `limit_s`.
LoadResult run_streams(int port, const std::string& path, const std::vector<std::string>& bodies, double limit_s);

/// GET on 127.0.0.1:port; the status, or 0 when nothing answers. `body` may be null.
int http_get(int port, const std::string& path, std::string* body);

/// The p-th percentile (0…100) of unsorted values; 0 when there are none.
double percentile(std::vector<double> values, double p);

}  // namespace troupe::bench
