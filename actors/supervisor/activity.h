#pragma once
// Loading and load as figures and as parts of a line. Pure: time is an argument.
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/status_page.h"
#include "base/clock.h"

namespace troupe::supervisor {

/// Tokens per second over the last few seconds, from totals that are sampled now and then. Totals that have
/// fallen are those of a new engine: what was before does not count.
class TokenRates {
 public:
  void sample(TimePoint now, const TokenTotals& totals);
  /// Zero before the second sample.
  TokenTotals::Rates rates() const;

 private:
  struct Sample {
    TimePoint at;
    TokenTotals totals;
  };
  std::deque<Sample> samples_;
};

/// How far the weights are loaded, of all workers together.
struct Loading {
  std::int64_t done_bytes = 0;
  std::int64_t total_bytes = 0;  ///< 0: not known yet
  double seconds = 0;            ///< since the first of them
};

/// "weights 54 %", a bar, "1.23 GB/s", "12 s left"; "starting" before, "memory and warm-up" after.
std::vector<std::string> loading_parts(const Loading& loading);

/// "3 running", "12 waiting", … of a page that the engine has answered.
std::vector<std::string> load_parts(const StatusPage& page);

/// True if requests run or wait.
bool is_busy(const StatusPage& page);

}  // namespace troupe::supervisor
