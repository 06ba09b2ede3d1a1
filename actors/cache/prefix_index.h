#pragma once
// Which block holds which contents: a hash table of fixed size, filled and emptied without allocating.
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace troupe {

/// Open addressing at a load of at most one half. Hashes are keyed and random, so their low bits choose the
/// place.
class PrefixIndex {
 public:
  /// Room for `blocks` entries.
  explicit PrefixIndex(std::int32_t blocks = 0);

  /// The block with these contents, or kNoBlock.
  BlockId find(const BlockHash& hash) const;

  /// Requires that the hash is not in the table and that the table has room.
  void insert(const BlockHash& hash, BlockId block);

  /// Requires that the hash is in the table.
  void erase(const BlockHash& hash);

  std::int32_t size() const { return size_; }
  void clear();

 private:
  struct Place {
    BlockHash hash;
    BlockId block = kNoBlock;
  };

  std::size_t home(const BlockHash& hash) const { return static_cast<std::size_t>(hash.lo) & mask_; }
  std::size_t locate(const BlockHash& hash) const;

  std::vector<Place> places_;
  std::size_t mask_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace troupe
