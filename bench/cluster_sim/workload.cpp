#include "bench/cluster_sim/workload.h"

#include <algorithm>
#include <cmath>

#include "bench/scheduler_sim/trace.h"

namespace troupe::bench {

std::uint64_t ClusterRandom::next() {
  std::uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

ZipfRanks::ZipfRanks(std::uint32_t ranks, double exponent) {
  double sum = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) sums_.push_back(sum += std::pow(rank + 1, -exponent));
}

std::uint32_t ZipfRanks::draw(ClusterRandom& random) const {
  const auto at = std::ranges::upper_bound(sums_, random.uniform() * sums_.back());
  return static_cast<std::uint32_t>(std::min<std::ptrdiff_t>(at - sums_.begin(), std::ssize(sums_) - 1));
}

TokenId ClusterTrace::token(std::uint32_t request, std::int32_t position) const {
  const bool shared = position < load.prefix_tokens;
  return text_token(shared ? arrivals[request].prefix : (std::uint64_t{1} << 32) + request, position);
}

std::vector<TokenId> ClusterTrace::prompt(std::uint32_t request) const {
  std::vector<TokenId> ids(static_cast<std::size_t>(load.prompt_tokens()));
  for (std::int32_t i = 0; i < load.prompt_tokens(); ++i)
    ids[static_cast<std::size_t>(i)] = token(request, i);
  return ids;
}

ClusterTrace make_cluster_trace(const ClusterLoad& load, const ClusterGoal& goal) {
  ClusterTrace trace;
  trace.load = load;
  trace.end_s = load.warm_up_s + load.measured_s + goal.ttft_s + goal.tpot_s * load.answer_tokens;
  const double rate = load.rate * load.engines;
  const ZipfRanks ranks(load.prefixes, load.exponent);
  ClusterRandom arrivals(load.seed);
  for (double at_s = 0;;) {
    at_s -= std::log1p(-arrivals.uniform()) / rate;
    if (at_s >= trace.end_s) break;
    trace.arrivals.push_back({at_s, ranks.draw(arrivals)});
  }
  ClusterRandom deaths(load.seed + 1);
  for (double at_s = load.death_every_s / 2; load.death_every_s > 0 && at_s < trace.end_s;
       at_s += load.death_every_s) {
    trace.deaths.push_back({at_s, static_cast<std::uint32_t>(deaths.next() % load.engines)});
  }
  // Spread over the engines: each of equal ranges has one, at its end.
  trace.slow.resize(load.engines);
  const auto slow = static_cast<std::uint32_t>(std::lround(load.slow_share * load.engines));
  for (std::uint32_t i = 1; i <= slow; ++i) trace.slow[std::uint64_t{i} * load.engines / slow - 1] = true;
  return trace;
}

}  // namespace troupe::bench
