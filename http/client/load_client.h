#pragma once
// A load generator: many event streams from one thread, each token timed. Loopback or a trusted network;
// bounded in streams and in time.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/server/tls_session.h"

namespace troupe::http {

struct LoadRequest {
  std::string body;    ///< of a request with "stream": true
  double after_s = 0;  ///< earliest time of sending, from the start of the run
};

struct LoadOptions {
  std::string host = "127.0.0.1";  ///< an address, or a name that has one
  int port = 8180;
  std::string path = "/v1/completions";
  std::string api_key;
  TlsContext tls;  ///< of make_client_tls(); null: plain HTTP. A handshake counts into the first token's time
  int concurrency = 0;   ///< most requests open at once; 0: no limit, only after_s counts
  double limit_s = 600;  ///< the run ends then; unfinished answers are not ok
};

struct LoadAnswer {
  bool ok = false;  ///< status 200 and a stream that ended with [DONE], without an error event
  int status = 0;
  std::int64_t sent_ns = 0;
  std::int64_t first_ns = 0;   ///< first event that carries text; 0: none came
  std::int64_t last_ns = 0;    ///< last event that carries text
  std::int64_t end_ns = 0;     ///< end of the answer
  int events = 0;              ///< that carry text
  int tokens = 0;              ///< completion_tokens of the usage, when the answer has one
  std::vector<float> gaps_ms;  ///< between the events that carry text
};

struct LoadRun {
  std::vector<LoadAnswer> answers;  ///< in the order of the requests
  double seconds = 0;               ///< first request sent to last answer's end
  std::int64_t events = 0;
  bool all_ok() const;
};

/// True for an address, and for a name that has one.
bool has_address(const std::string& host);

/// Sends the requests and reads their answers. A request that is not sent or not answered has an answer that
/// is not ok.
LoadRun run_load(const LoadOptions& options, const std::vector<LoadRequest>& requests);

/// Sends every body at once, to 127.0.0.1.
LoadRun run_at_once(int port, const std::string& path, const std::vector<std::string>& bodies,
                    double limit_s);

/// The p-th percentile (0…100) of unsorted values; 0 when there are none.
double percentile(std::vector<double> values, double p);

}  // namespace troupe::http
