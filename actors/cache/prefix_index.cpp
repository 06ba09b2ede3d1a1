#include "actors/cache/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace troupe {

PrefixIndex::PrefixIndex(std::int32_t blocks)
    : places_(std::bit_ceil(2 * static_cast<std::size_t>(std::max(blocks, 1)))), mask_(places_.size() - 1) {}

/// The hash's place, or the empty one where it belongs.
std::size_t PrefixIndex::locate(const BlockHash& hash) const {
  std::size_t at = home(hash);
  while (places_[at].block != kNoBlock && places_[at].hash != hash) at = (at + 1) & mask_;
  return at;
}

BlockId PrefixIndex::find(const BlockHash& hash) const { return places_[locate(hash)].block; }

void PrefixIndex::insert(const BlockHash& hash, BlockId block) {
  Place& place = places_[locate(hash)];
  TROUPE_CHECK(place.block == kNoBlock && 2 * static_cast<std::size_t>(size_) < places_.size());
  place = {hash, block};
  ++size_;
}

/// Moves later entries of the same run back, so that no search ends too early at the new gap.
void PrefixIndex::erase(const BlockHash& hash) {
  std::size_t gap = locate(hash);
  TROUPE_CHECK(places_[gap].block != kNoBlock);
  for (std::size_t at = (gap + 1) & mask_; places_[at].block != kNoBlock; at = (at + 1) & mask_) {
    const std::size_t distance = (at - home(places_[at].hash)) & mask_;
    if (distance < ((at - gap) & mask_)) continue;
    places_[gap] = places_[at];
    gap = at;
  }
  places_[gap].block = kNoBlock;
  --size_;
}

void PrefixIndex::clear() {
  std::fill(places_.begin(), places_.end(), Place{});
  size_ = 0;
}

}  // namespace troupe
