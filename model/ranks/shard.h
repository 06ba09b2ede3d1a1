#pragma once
// A rank's place among the ranks that run one model together.

namespace troupe::model {

struct Shard {
  int rank = 0;   ///< 0 … ranks - 1
  int ranks = 1;  ///< 1 … kMostRanks
  bool expert_parallel =
      false;  ///< experts are spread over the ranks whole; else each is cut across its width

  bool alone() const { return ranks == 1; }
};

/// Which rank an executor is, and the memory of create_rank_memory(), which is not kept; none for one rank.
struct RankPlace {
  Shard shard{};
  int memory_fd = -1;
  int engine = 0;   ///< index of the rank's engine
  int engines = 1;  ///< of this machine, each with as many ranks

  /// The rank's number among those of all engines.
  int worker() const { return engine * shard.ranks + shard.rank; }
  int workers() const { return engines * shard.ranks; }
};

inline constexpr int kMostRanks = 32;

}  // namespace troupe::model
