#include "bench/cluster_sim/balancers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/cluster_sim/workload.h"

namespace troupe::bench {
namespace {

class ProductBalancer : public Balancer {
 public:
  ProductBalancer(config::RoutingPolicy policy, BalancerParts parts)
      : answer_tokens_(parts.answer_tokens), places_(parts.requests) {
    EngineRouter::Setup setup{policy, kBlockTokens, std::move(parts.names)};
    setup.now = std::move(parts.now);
    router_ = std::make_shared<EngineRouter>(std::move(setup));
  }
  std::uint32_t choose(std::uint32_t request, std::span<const TokenId> prompt,
                       std::span<const std::uint32_t> candidates) override {
    const EngineRouter::Request wanted{.prompt = prompt,
                                       .prompt_tokens = std::ssize(prompt),
                                       .answers = 1,
                                       .answer_tokens = answer_tokens_,
                                       .prefix = &prefix_};
    return router_->choose(wanted, candidates, places_[request]);
  }
  void end(std::uint32_t request) override { places_[request] = {}; }
  void serves(std::uint32_t engine, bool on) override { router_->serves(engine, on); }

 private:
  const PrefixUse prefix_;
  const std::int32_t answer_tokens_;
  std::shared_ptr<EngineRouter> router_;
  std::vector<EngineRouter::Place> places_;
};

/// Knows how many requests each engine has.
class CountingBalancer : public Balancer {
 public:
  explicit CountingBalancer(const BalancerParts& parts) : open_(parts.engines), engine_of_(parts.requests) {}
  void end(std::uint32_t request) override {
    --open_[engine_of_[request]];
    --total_;
  }

 protected:
  std::uint32_t give(std::uint32_t request, std::uint32_t engine) {
    ++open_[engine];
    ++total_;
    return engine_of_[request] = engine;
  }

  std::vector<std::uint32_t> open_;  ///< by engine
  std::uint64_t total_ = 0;

 private:
  std::vector<std::uint32_t> engine_of_;  ///< by request
};

class LeastLoad : public CountingBalancer {
 public:
  using CountingBalancer::CountingBalancer;
  std::uint32_t choose(std::uint32_t request, std::span<const TokenId> /*prompt*/,
                       std::span<const std::uint32_t> candidates) override {
    const std::size_t turn = turn_++;
    std::uint32_t best = candidates[turn % candidates.size()];
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      const std::uint32_t engine = candidates[(turn + i) % candidates.size()];
      if (open_[engine] < open_[best]) best = engine;
    }
    return give(request, best);
  }

 private:
  std::size_t turn_ = 0;
};

class BoundedHashing : public CountingBalancer {
 public:
  explicit BoundedHashing(const BalancerParts& parts) : CountingBalancer(parts), candidate_(parts.engines) {
    for (std::uint32_t engine = 0; engine < parts.engines; ++engine) {
      ClusterRandom random(engine);
      for (int i = 0; i < kPoints; ++i) ring_.push_back({random.next(), engine});
    }
    std::ranges::sort(ring_);
  }
  std::uint32_t choose(std::uint32_t request, std::span<const TokenId> prompt,
                       std::span<const std::uint32_t> candidates) override {
    std::uint64_t hash = 0;
    for (const TokenId id : prompt.first(std::min<std::size_t>(kBlockTokens, prompt.size())))
      hash = ClusterRandom(hash + static_cast<std::uint64_t>(id)).next();
    std::fill(candidate_.begin(), candidate_.end(), false);
    double open = 0;
    for (const std::uint32_t engine : candidates) {
      candidate_[engine] = true;
      open += open_[engine];
    }
    const double bound = std::ceil(kLoadFactor * (open + 1) / static_cast<double>(candidates.size()));
    std::size_t at = static_cast<std::size_t>(
        std::ranges::lower_bound(ring_, std::pair(hash, std::uint32_t{0})) - ring_.begin());
    // One is below the bound, as it is above the mean.
    for (;; ++at) {
      const std::uint32_t engine = ring_[at % ring_.size()].second;
      if (candidate_[engine] && open_[engine] < bound) return give(request, engine);
    }
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ring_;
  std::vector<bool> candidate_;  ///< of this choice
};

}  // namespace

const char* name_of(Balancing balancing) {
  switch (balancing) {
    case Balancing::product: return "ours";
    case Balancing::round_robin: return "round-robin";
    case Balancing::least_load: return "least-load";
    case Balancing::bounded_hashing: return "bounded-hashing";
  }
  return "";
}

std::unique_ptr<Balancer> make_balancer(Balancing balancing, BalancerParts parts) {
  switch (balancing) {
    case Balancing::product:
      return std::make_unique<ProductBalancer>(config::RoutingPolicy::cache, std::move(parts));
    case Balancing::round_robin:
      return std::make_unique<ProductBalancer>(config::RoutingPolicy::round_robin, std::move(parts));
    case Balancing::least_load: return std::make_unique<LeastLoad>(parts);
    case Balancing::bounded_hashing: break;
  }
  return std::make_unique<BoundedHashing>(parts);
}

}  // namespace troupe::bench
