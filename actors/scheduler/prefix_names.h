#pragma once
// The prefix cache: the names of blocks by their contents, and which blocks are published under them.
#include <cstdint>
#include <string>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/messages.h"
#include "actors/scheduler/sequence.h"
#include "actors/scheduler/worker_limits.h"

namespace troupe {

/// How the scheduler uses the prefix cache.
struct PrefixCaching {
  bool prompts = true;  ///< look up and publish blocks of prompts
  bool outputs = true;  ///< publish blocks of generated tokens too
  HashKey key;
};

/// Admission names the contents of the prompt's full blocks, and what is found of them is not computed. A
/// full block is published when the step that filled it has come back (actors/cache/cache_manager.h). With a
/// swap space, what a sequence that is put back has computed is published, the answer under names that no
/// other sequence has unless answers are cached; so it is copied out when its blocks are needed, and copied
/// back when it is admitted again.
///
/// A block's name is computed once for each sequence. What is to be published or withdrawn is gathered until
/// take().
class PrefixNames {
 public:
  explicit PrefixNames(const PrefixCaching& caching) : caching_(caching), hasher_(caching.key) {}

  void attach(const WorkerLimits& worker);
  /// The worker is lost, and its blocks with it.
  void clear();

  /// A new sequence: whether its blocks are looked up and published, and where its chain of names begins.
  void begin(ScheduledSequence& sequence, const PrefixUse& use) const;

  /// Appends the contents that a waiting sequence may use without computing them: all full blocks before its
  /// last known token, which it has to run, and before the first prompt position whose logprobs are still
  /// wanted. Returns where in `hashes` they are.
  HashRange name_contents(ScheduledSequence& sequence, std::vector<BlockHash>& hashes);

  /// The name under which the worker keeps what it makes of an item: of its contents, for requests with the
  /// same salt. Zero for one that neither reads nor fills caches.
  BlockHash name_item(const ScheduledSequence& sequence, const SequenceItem& item) const;

  /// Publishes the blocks that committed steps have filled and that others may find. Positions that ran a
  /// token which was discarded later are not counted.
  void publish_full_blocks(ScheduledSequence& sequence) {
    if (sequence.cacheable) publish_committed(sequence);
  }
  /// The sequence is put back: publishes all that it has computed, so that it can be copied out, and found by
  /// it alone. Without a swap space nothing.
  void park(ScheduledSequence& sequence);
  /// The sequence's own blocks must not be found again.
  void withdraw(const ScheduledSequence& sequence) { withdrawals_.push_back(sequence.key); }

  /// Exchanges what was gathered for the empty lists of `asks`.
  void take(CacheAsks& asks);

 private:
  std::int32_t public_blocks(const ScheduledSequence& sequence) const;
  void hash_blocks(ScheduledSequence& sequence, std::int32_t blocks);
  void publish_committed(ScheduledSequence& sequence);
  void publish_blocks(ScheduledSequence& sequence, std::int32_t full);

  const PrefixCaching caching_;
  const BlockHasher hasher_;
  std::int32_t block_tokens_ = 1;
  bool swaps_ = false;
  std::vector<PublishAsk> publishes_;
  std::vector<BlockHash> published_hashes_;
  std::vector<RequestKey> withdrawals_;
  std::vector<TokenId> block_ids_;  ///< scratch: a block of which some ids are shared, and
  std::vector<BlockHash> more_;     ///< what its name contains beside ids
};

}  // namespace troupe
