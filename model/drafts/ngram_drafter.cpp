#include "model/drafts/ngram_drafter.h"

#include <algorithm>
#include <bit>

namespace troupe::model {
namespace {

constexpr std::size_t kLeastBuckets = 256;

}  // namespace

NgramDrafter::NgramDrafter(int slots, int shortest, int longest)
    : shortest_(shortest), longest_(longest), indexes_(static_cast<std::size_t>(slots)) {}

void NgramDrafter::start(std::uint32_t slot, std::int32_t, std::span<const TokenId>) { rewind(slot); }

void NgramDrafter::rewind(std::uint32_t slot) {
  Index& index = indexes_[slot];
  index.ends = 0;
  index.earlier.clear();
  index.newest.clear();
}

std::size_t NgramDrafter::bucket(const Index& index, std::span<const TokenId> ngram) {
  std::uint64_t hash = 0;
  for (const TokenId id : ngram) {
    hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash >> 32) & (index.newest.size() - 1);
}

/// Adds every n-gram but the one that ends the sequence: that one is looked up.
void NgramDrafter::add(Index& index, std::span<const TokenId> ids) const {
  const auto end = static_cast<std::int32_t>(ids.size());
  if (index.newest.size() < ids.size()) {
    index.newest.assign(std::max(kLeastBuckets, std::bit_ceil(2 * ids.size())), kNone);
    index.ends = 0;
  }
  index.earlier.resize(ids.size(), kNone);
  for (std::int32_t at = std::max(index.ends, shortest_); at < end; ++at) {
    const std::span<const TokenId> ngram =
        ids.subspan(static_cast<std::size_t>(at - shortest_), static_cast<std::size_t>(shortest_));
    std::int32_t& newest = index.newest[bucket(index, ngram)];
    index.earlier[static_cast<std::size_t>(at)] = newest;
    newest = at;
  }
  index.ends = end;
}

/// How many tokens before `end` equal those at the end of `last`, up to the longest n-gram.
std::int32_t NgramDrafter::common(std::span<const TokenId> ids, std::int32_t end,
                                  std::span<const TokenId> last) const {
  std::int32_t count = 0;
  while (count < std::min(longest_, end) && ids[static_cast<std::size_t>(end - 1 - count)] ==
                                                last[last.size() - 1 - static_cast<std::size_t>(count)])
    ++count;
  return count;
}

std::size_t NgramDrafter::draft_behind(std::uint32_t slot, std::span<const TokenId> ids,
                                       std::span<const TokenId> guessed, std::span<TokenId> out) {
  if (out.empty() || static_cast<std::int32_t>(ids.size()) <= shortest_) return 0;
  Index& index = indexes_[slot];
  add(index, ids);
  const std::span<const TokenId> known = ids.last(std::min(ids.size(), static_cast<std::size_t>(longest_)));
  last_.assign(known.begin(), known.end());
  last_.insert(last_.end(), guessed.begin(), guessed.end());
  const std::span<const TokenId> last = last_;
  std::int32_t best = shortest_ - 1, from = kNone, places = 0;
  for (std::int32_t at = index.newest[bucket(index, last.last(static_cast<std::size_t>(shortest_)))];
       at != kNone && best < longest_ && places < kMostPlaces;
       at = index.earlier[static_cast<std::size_t>(at)], ++places) {
    if (const std::int32_t length = common(ids, at, last); length > best) {
      best = length;
      from = at;
    }
  }
  if (from == kNone) return 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t at = static_cast<std::size_t>(from) + i, behind = at - ids.size();
    out[i] = at < ids.size()           ? ids[at]
             : behind < guessed.size() ? guessed[behind]
                                       : out[behind - guessed.size()];
  }
  return out.size();
}

}  // namespace troupe::model
