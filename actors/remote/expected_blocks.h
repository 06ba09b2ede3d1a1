#pragma once
// KV blocks of prompts that a prefill engine is computing, which are fetched as soon as the engine has named
// them: while it computes the later ones. When a prompt is handed over, what its last step has filled is all
// that is still to come.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace troupe::remote {

/// Of one rank: which blocks to ask for, and the bytes of those that have come, until the worker wants them.
/// Any thread may call any function.
class ExpectedBlocks {
 public:
  /// Of blocks that have come. Those that came first go first.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{512} << 20;
  /// How long such a block is kept.
  static constexpr Duration kKept = std::chrono::seconds(10);
  /// So many of the names that are waited for are remembered.
  static constexpr std::size_t kMostNames = 1 << 14;
  /// Blocks that are asked for at a time: those that a worker wants wait behind them.
  static constexpr std::size_t kMostAsked = 4;

  struct Order {
    BlockHash contents{};
    BlockId block = kNoBlock;
  };

  /// The engine will compute blocks with these contents.
  void expect(std::span<const BlockHash> contents);
  /// A block of the engine has got a name.
  void named(BlockId block, const BlockHash& contents);

  /// The block to ask for next.
  std::optional<Order> next();
  /// The answer to an order. Without bytes: it has gone, or was for a worker that wants it.
  void answered(const BlockHash& contents, std::vector<std::byte> bytes = {});
  /// A block is asked for otherwise.
  void forget(const BlockHash& contents);
  /// The bytes of a block that has come, which are kept no longer; empty: it has not.
  std::vector<std::byte> take(const BlockHash& contents);

  /// True if next() has something.
  bool has_next() const;
  /// Forgets everything, also what has been asked for.
  void clear();

 private:
  struct Block {
    BlockHash contents{};
    std::vector<std::byte> bytes;
    TimePoint came{};
  };
  void drop(std::list<Block>::iterator block);

  struct HashOfName {
    std::size_t operator()(const BlockHash& name) const {
      return static_cast<std::size_t>(name.hi ^ name.lo);
    }
  };
  mutable std::mutex mutex_;
  std::unordered_set<BlockHash, HashOfName> awaited_;  // that have no block yet
  std::deque<BlockHash> awaited_order_;                // of awaited_, and some that are awaited no more
  std::deque<Order> orders_;
  std::size_t asked_ = 0;
  std::list<Block> blocks_;  // in the order in which they came
  std::unordered_map<BlockHash, std::list<Block>::iterator, HashOfName> places_;
  std::uint64_t bytes_ = 0;
};

}  // namespace troupe::remote
