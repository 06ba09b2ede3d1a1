#pragma once
// Blocks in the order of their last use: the oldest is evicted first.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace troupe {

/// A linked list of block ids [0, total), each of which is in it at most once. Every call is O(1); allocates
/// in the constructor only.
class UseOrder {
 public:
  explicit UseOrder(std::int32_t total) : links_(static_cast<std::size_t>(total)) {}

  /// The block has been used last. It must not be in the list.
  void append(BlockId block) {
    at(block) = {newest_, kNoBlock};
    (newest_ == kNoBlock ? oldest_ : at(newest_).newer) = block;
    newest_ = block;
    ++size_;
  }
  /// Takes a block out of the list, which must be in it.
  void remove(BlockId block) {
    const Link link = at(block);
    (link.older == kNoBlock ? oldest_ : at(link.older).newer) = link.newer;
    (link.newer == kNoBlock ? newest_ : at(link.newer).older) = link.older;
    --size_;
  }

  std::int32_t size() const { return size_; }
  /// kNoBlock at the ends of the list.
  BlockId oldest() const { return oldest_; }
  BlockId older(BlockId block) const { return links_[static_cast<std::size_t>(block)].older; }
  BlockId newer(BlockId block) const { return links_[static_cast<std::size_t>(block)].newer; }

 private:
  struct Link {
    BlockId older = kNoBlock;
    BlockId newer = kNoBlock;
  };

  Link& at(BlockId block) { return links_[static_cast<std::size_t>(block)]; }

  std::vector<Link> links_;
  BlockId oldest_ = kNoBlock;
  BlockId newest_ = kNoBlock;
  std::int32_t size_ = 0;
};

}  // namespace troupe
