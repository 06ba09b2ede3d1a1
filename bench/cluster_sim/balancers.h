#pragma once
// Who chooses the engine of a request: the product's router, and those it is compared with.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/session/engine_router.h"
#include "base/clock.h"
#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe::bench {

/// Counts the open requests of engines for those who look at them; also a base without it.
class Balancer {
 public:
  virtual ~Balancer() = default;

  /// Returns one of `candidates`, which are not empty; the request is open there until end().
  virtual std::uint32_t choose(std::uint32_t request, std::span<const TokenId> prompt,
                               std::span<const std::uint32_t> candidates) = 0;
  /// Requires that the request is open.
  virtual void end(std::uint32_t request) = 0;
  virtual void serves(std::uint32_t /*engine*/, bool /*on*/) {}
};

struct BalancerParts {
  std::uint32_t engines = 0;
  std::uint32_t requests = 0;
  std::int32_t answer_tokens = 0;                             ///< most, of each request
  std::vector<std::shared_ptr<const ipc::BlockNames>> names;  ///< by engine
  std::function<TimePoint()> now;
};

enum class Balancing { product, round_robin, least_load, bounded_hashing };

const char* name_of(Balancing balancing);

/// product and round_robin are the two policies of the product's EngineRouter.
///
/// least_load: the fewest open requests; of equal ones the first, beginning with the one whose turn it is.
///
/// bounded_hashing: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018,
/// arXiv:1608.01350). Each engine has kPoints points on a ring; a request goes to the engine of the first
/// point at or after the hash of its first block that has fewer than ceil(kLoadFactor (m + 1) / n) open
/// requests, with m open requests at n candidates.
inline constexpr double kLoadFactor = 1.25;
inline constexpr int kPoints = 64;

std::unique_ptr<Balancer> make_balancer(Balancing balancing, BalancerParts parts);

}  // namespace troupe::bench
