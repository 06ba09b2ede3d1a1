#pragma once
// What a simulated cluster is given: requests whose prompts begin with one of many shared prefixes, engines
// that die and engines that are slow. Pure; the same seed gives the same.
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe::bench {

inline constexpr std::int32_t kBlockTokens = 64;
inline constexpr ipc::NamesKey kNamesKey{1, 2};  ///< of all simulated engines

struct ClusterLoad {
  std::uint32_t engines = 64;
  double rate = 8;  ///< requests a second for each engine, Poisson
  /// Requests that arrive within these seconds are judged; before them caches fill. Afterwards they go on
  /// arriving until each of those judged is good or cannot be any more.
  double warm_up_s = 40;
  double measured_s = 120;
  std::uint32_t prefixes = 10'000;
  double exponent = 1;  ///< of Zipf's law for the popularity of prefixes
  std::int32_t prefix_tokens = 2000;
  std::int32_t question_tokens = 500;
  std::int32_t answer_tokens = 300;
  double death_every_s = 60;  ///< one engine dies, the first time after half of it
  double restart_s = 30;      ///< after a death; its cache is empty then
  double slow_share = 0.1;    ///< of the engines, rounded
  double slow_speed = 0.5;
  std::uint64_t seed = 1;

  std::int32_t prompt_tokens() const { return prefix_tokens + question_tokens; }
};

/// When a request is good.
struct ClusterGoal {
  double ttft_s = 1;
  double tpot_s = 0.05;
};

struct ClusterArrival {
  double at_s = 0;
  std::uint32_t prefix = 0;
};

struct ClusterDeath {
  double at_s = 0;
  std::uint32_t engine = 0;
};

struct ClusterTrace {
  ClusterLoad load;
  double end_s = 0;  ///< the last arrival is before it
  std::vector<ClusterArrival> arrivals;
  std::vector<ClusterDeath> deaths;
  std::vector<bool> slow;  ///< by engine

  /// The token at a position of a request's text: prefix, question, answer.
  TokenId token(std::uint32_t request, std::int32_t position) const;
  std::vector<TokenId> prompt(std::uint32_t request) const;
};

ClusterTrace make_cluster_trace(const ClusterLoad& load, const ClusterGoal& goal);

/// A generator with the same numbers everywhere: splitmix64.
class ClusterRandom {
 public:
  explicit ClusterRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

/// Ranks from 0, the rank r with a probability in proportion to (r + 1)^-exponent.
class ZipfRanks {
 public:
  ZipfRanks(std::uint32_t ranks, double exponent);
  std::uint32_t draw(ClusterRandom& random) const;

 private:
  std::vector<double> sums_;  ///< of the probabilities up to a rank
};

}  // namespace troupe::bench
