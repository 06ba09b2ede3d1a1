#pragma once
// A rank's place among the ranks that run one model together.
#include <algorithm>

namespace troupe::model {

struct Shard {
  int rank = 0;   ///< 0 … ranks - 1
  int ranks = 1;  ///< 1 … kMostRanks
  bool expert_parallel =
      false;  ///< experts are spread over the ranks whole; else each is cut across its width

  bool alone() const { return ranks == 1; }
};

/// KV heads [first, first + count) of a model.
struct KvHeads {
  int first = 0;
  int count = 0;
};

/// Of a model's `kv_heads` those that the rank holds. Where there are more ranks than heads, each head is on
/// ranks / kv_heads of them, one after the other. One of the two numbers divides the other.
constexpr KvHeads kv_heads_of(int kv_heads, const Shard& shard) {
  return {kv_heads * shard.rank / shard.ranks, std::max(1, kv_heads / shard.ranks)};
}

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
