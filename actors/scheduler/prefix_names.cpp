#include "actors/scheduler/prefix_names.h"

#include <algorithm>
#include <span>

#include "actors/cache/media_names.h"

namespace troupe {

void PrefixNames::attach(const WorkerLimits& worker) {
  block_tokens_ = worker.block_tokens;
  swaps_ = worker.swaps;
}

void PrefixNames::clear() {
  publishes_.clear();
  published_hashes_.clear();
  withdrawals_.clear();
}

void PrefixNames::begin(ScheduledSequence& s, const PrefixUse& use) const {
  s.cacheable = caching_.prompts && use.enabled;
  s.media.cacheable = use.enabled;
  if (s.cacheable || (use.enabled && s.media.items != nullptr)) s.root = hasher_.root(use.salt);
}

BlockHash PrefixNames::name_item(const ScheduledSequence& s, const SequenceItem& item) const {
  return s.media.cacheable ? hasher_.next(s.root, {}, {&item.contents, 1}) : BlockHash{};
}

/// How many blocks, from the first, have names that other sequences can know. The names of the later ones
/// contain its key.
std::int32_t PrefixNames::public_blocks(const ScheduledSequence& s) const {
  if (!s.cacheable) return 0;
  return caching_.outputs ? INT32_MAX : s.prompt_tokens / block_tokens_;
}

/// Makes the hashes of the first `blocks` full blocks known.
void PrefixNames::hash_blocks(ScheduledSequence& s, std::int32_t blocks) {
  const std::size_t length = static_cast<std::size_t>(block_tokens_);
  const std::size_t named_for_all = static_cast<std::size_t>(public_blocks(s));
  const BlockHash own{s.key.hi, s.key.lo};
  while (s.hashes.size() < static_cast<std::size_t>(blocks)) {
    const BlockHash& previous = s.hashes.empty() ? s.root : s.hashes.back();
    const std::size_t first = s.hashes.size() * length;
    media_in_block(s.media.list(), static_cast<std::int32_t>(first), block_tokens_, more_);
    if (s.hashes.size() >= named_for_all) more_.push_back(own);
    s.hashes.push_back(hasher_.next(previous, s.tokens.range(first, length, block_ids_), more_));
  }
}

HashRange PrefixNames::name_contents(ScheduledSequence& s, std::vector<BlockHash>& hashes) {
  const HashRange none{static_cast<std::int32_t>(hashes.size()), 0};
  if (!s.cacheable && !s.parked) return none;
  std::int32_t positions = s.expected - 1;
  // The logprobs of position p come from running position p - 1.
  if (s.sampling.prompt_logprobs >= 0 && s.scored < s.prompt_tokens) {
    positions = std::min(positions, std::max(1, s.scored) - 1);
  }
  const std::int32_t blocks = positions / block_tokens_;
  hash_blocks(s, blocks);
  hashes.insert(hashes.end(), s.hashes.begin(), s.hashes.begin() + blocks);
  return {none.first, blocks};
}

/// Publishes the blocks before `full` that are not published yet.
void PrefixNames::publish_blocks(ScheduledSequence& s, std::int32_t full) {
  if (full <= s.published) return;
  hash_blocks(s, full);
  const HashRange range{static_cast<std::int32_t>(published_hashes_.size()), full - s.published};
  published_hashes_.insert(published_hashes_.end(), s.hashes.begin() + s.published, s.hashes.begin() + full);
  publishes_.push_back({s.key, s.published, range});
  s.published = full;
}

void PrefixNames::publish_committed(ScheduledSequence& s) {
  const std::int32_t known = caching_.outputs ? static_cast<std::int32_t>(s.tokens.size()) : s.prompt_tokens;
  const std::int32_t filled = std::min(s.committed, known);
  if (filled >= (s.published + 1) * block_tokens_) publish_blocks(s, filled / block_tokens_);
}

void PrefixNames::park(ScheduledSequence& s) {
  if (!swaps_) return;
  publish_blocks(s, std::min(s.committed, static_cast<std::int32_t>(s.tokens.size())) / block_tokens_);
  s.parked |= s.published > 0;
}

void PrefixNames::take(CacheAsks& asks) {
  asks.publishes.swap(publishes_);
  asks.hashes.swap(published_hashes_);
  asks.withdrawals.swap(withdrawals_);
}

}  // namespace troupe
