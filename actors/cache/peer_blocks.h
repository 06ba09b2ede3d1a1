#pragma once
// KV blocks of other instances, whose contents this one's worker can copy. They are found by name in the
// other instance's table (ipc/block_names.h). They are not leased: the other instance may reuse a block at
// any time, after it has cleared its name. So a copy counts only if the entry is unchanged when it has ended.
// Pure but for the shared memory that it reads.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "actors/cache/cached_names.h"
#include "base/clock.h"
#include "base/ids.h"
#include "ipc/block_names.h"

namespace troupe {

/// A block of another instance, and what its entry in the table was when it was found.
struct PeerBlock {
  std::uint32_t peer = 0;  ///< index of the instance
  BlockId block = kNoBlock;
  std::uint64_t memory = 0;  ///< the life of the instance's KV memory
  std::uint64_t state = 0;   ///< of the entry
};

/// Used by one thread.
class PeerBlocks {
 public:
  using Tables = std::vector<std::shared_ptr<const ipc::BlockNames>>;

  PeerBlocks() = default;
  /// All tables have the key with which this instance's names are made.
  explicit PeerBlocks(Tables tables);

  bool any() const { return !tables_.empty(); }

  /// Reads the tables. Takes about two nanoseconds for each of their blocks.
  void refresh();

  /// A block that had these contents at the last refresh(), of an instance that is trusted; `block` kNoBlock:
  /// there is none.
  PeerBlock find(const BlockHash& contents) const;

  /// The block has the contents with which it was found, and had them all the time since.
  bool unchanged(const PeerBlock& found) const;

  /// A copy of the block has failed: its instance's memory may be out of reach, or the worker has not mapped
  /// it yet. All blocks of this life of that memory are hidden for kSkipped.
  void skip(const PeerBlock& of) { skipped_[of.peer] = {of.memory, Clock::now() + kSkipped}; }
  static constexpr Duration kSkipped = std::chrono::milliseconds(500);

 private:
  Tables tables_;
  CachedNames names_{{}};
  struct Skipped {
    std::uint64_t memory = 0;
    TimePoint until{};
  };
  std::vector<Skipped> skipped_;  // by instance
  TimePoint refreshed_{};
};

}  // namespace troupe
