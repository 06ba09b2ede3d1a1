// The prefix cache: which contents admission names, and which blocks are published.
#include <algorithm>

#include "actors/scheduler/scheduler.h"

namespace troupe {

/// How many blocks, from the first, have names that other sequences can know. The names of the later ones
/// contain its key.
std::int32_t Scheduler::public_blocks(const ScheduledSequence& s) const {
  if (!s.cacheable) return 0;
  return caching_.outputs ? INT32_MAX : s.prompt_tokens / limits_.block_tokens;
}

/// Makes the hashes of the first `blocks` full blocks known.
void Scheduler::hash_blocks(ScheduledSequence& s, std::int32_t blocks) {
  const std::size_t length = static_cast<std::size_t>(limits_.block_tokens);
  const std::size_t named_for_all = static_cast<std::size_t>(public_blocks(s));
  const BlockHash own{s.key.hi, s.key.lo};
  while (s.hashes.size() < static_cast<std::size_t>(blocks)) {
    const BlockHash& previous = s.hashes.empty() ? s.root : s.hashes.back();
    const std::span<const BlockHash> more(&own, s.hashes.size() < named_for_all ? 0 : 1);
    s.hashes.push_back(hasher_.next(previous, s.tokens.range(s.hashes.size() * length, length, block_ids_), more));
  }
}

/// Appends the contents that a waiting sequence may use without computing them: all full blocks before its
/// last known token, which it has to run, and before the first prompt position whose logprobs are still
/// wanted.
HashRange Scheduler::name_contents(ScheduledSequence& s, std::vector<BlockHash>& hashes) {
  const HashRange none{static_cast<std::int32_t>(hashes.size()), 0};
  if (!s.cacheable && !s.parked) return none;
  std::int32_t positions = s.expected - 1;
  // The logprobs of position p come from running position p - 1.
  if (s.sampling.prompt_logprobs >= 0 && s.scored < s.prompt_tokens) {
    positions = std::min(positions, std::max(1, s.scored) - 1);
  }
  const std::int32_t blocks = positions / limits_.block_tokens;
  hash_blocks(s, blocks);
  hashes.insert(hashes.end(), s.hashes.begin(), s.hashes.begin() + blocks);
  return {none.first, blocks};
}

/// Publishes the blocks before `full` that are not published yet.
void Scheduler::publish_blocks(ScheduledSequence& s, std::int32_t full) {
  if (full <= s.published) return;
  hash_blocks(s, full);
  const HashRange range{static_cast<std::int32_t>(published_hashes_.size()), full - s.published};
  published_hashes_.insert(published_hashes_.end(), s.hashes.begin() + s.published, s.hashes.begin() + full);
  publishes_.push_back({s.key, s.published, range});
  s.published = full;
}

/// Publishes the blocks that committed steps have filled and that others may find. Positions that ran a token
/// which was discarded later are not counted.
void Scheduler::publish_full_blocks(ScheduledSequence& s) {
  if (!s.cacheable) return;
  const std::int32_t known = caching_.outputs ? static_cast<std::int32_t>(s.tokens.size()) : s.prompt_tokens;
  publish_blocks(s, std::min(s.committed, known) / limits_.block_tokens);
}

/// A sequence is put back: all that it has computed can be copied out, and found by it alone.
void Scheduler::park(ScheduledSequence& s) {
  if (!limits_.swaps) return;
  publish_blocks(s, std::min(s.committed, static_cast<std::int32_t>(s.tokens.size())) / limits_.block_tokens);
  s.parked |= s.published > 0;
}

/// An admitted sequence begins behind the positions that its lease holds already: those that it shares with
/// the other choices of its prompt, or the blocks that were found.
void Scheduler::begin_at(ScheduledSequence& s) {
  s.published = s.forks ? shared_positions(s) / limits_.block_tokens : s.found;
  s.planned = s.committed = s.forks ? shared_positions(s) : s.found * limits_.block_tokens;
  if (s.cached_tokens >= 0) return;  // admitted before
  s.cached_tokens = std::min(s.found * limits_.block_tokens, s.prompt_tokens);
  // The prompt is counted with the choice that computed it, and with the first submission of its request.
  if (s.forks || s.attempt > 0) return;
  const std::int32_t swapped = std::min(s.swapped * limits_.block_tokens, s.cached_tokens);
  ++since_step_.admitted;
  since_step_.admitted_hits += s.cached_tokens > 0 ? 1 : 0;
  since_step_.admitted_tokens += s.prompt_tokens;
  since_step_.cached_tokens += s.cached_tokens;
  since_step_.swapped_tokens += swapped;
  totals_.prompt_tokens += s.prompt_tokens;
  totals_.cached_tokens += s.cached_tokens;
  totals_.swapped_tokens += swapped;
}

}  // namespace troupe
