#pragma once
// What a load test asks of a server: prompts of random lengths, some with a common beginning, and when.
#include <cstdint>
#include <string>
#include <vector>

#include "http/client/load_client.h"

namespace troupe::bench {

struct LoadPlan {
  int requests = 100;
  int concurrency = 0;  ///< requests inside at once; 0: 16 in a closed loop, any number with a rate
  double rate = 0;      ///< requests a second, at exponentially distributed distances; 0: closed loop
  int input = 512;      ///< tokens of a prompt, on average
  int output = 128;     ///< tokens of an answer
  double spread = 0;    ///< lengths are uniform in [1 - spread, 1 + spread] times the above
  int prefix = 0;       ///< tokens at the beginning of a prompt that several share
  int prefixes = 1;     ///< different such beginnings
  int vocab = 1000;     ///< ids are drawn from [first_id, vocab)
  int first_id = 10;
  std::uint64_t seed = 1;
};

/// What LoadOptions::concurrency is for this plan. A bound on an open loop makes requests wait before they
/// are sent, which no time of theirs then shows.
int concurrency_of(const LoadPlan& plan);

/// The same plan gives the same requests. Bodies for POST /v1/completions, streamed, exactly `output` tokens.
std::vector<http::LoadRequest> make_requests(const LoadPlan& plan);

/// TTFT, ITL, TPOT, end-to-end time, tokens per second, as text or one JSON object.
std::string load_summary(const LoadPlan& plan, const http::LoadRun& run, bool json);

}  // namespace troupe::bench
