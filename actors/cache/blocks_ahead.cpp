#include "actors/cache/blocks_ahead.h"

#include <algorithm>

namespace troupe {

void BlocksAhead::expect(std::uint32_t front, const ExpectBlocks& expected, BlockPool& pool) {
  forget(expected.key, pool);
  if (expected.names.empty() || prompts_.size() == kMostPrompts) return;
  prompts_.push_back({expected.key, front, expected.names, {}, 0, 0});
}

void BlocksAhead::forget(const RequestKey& key, BlockPool& pool) {
  const auto at = std::ranges::find_if(prompts_, [&](const Prompt& prompt) { return prompt.key == key; });
  if (at == prompts_.end()) return;
  release(*at, pool);
  prompts_.erase(at);
}

void BlocksAhead::forget_front(std::uint32_t front, BlockPool& pool) {
  std::erase_if(prompts_, [&](Prompt& prompt) {
    if (prompt.front != front) return false;
    release(prompt, pool);
    return true;
  });
}

void BlocksAhead::forget_all(BlockPool& pool) {
  for (Prompt& prompt : prompts_) release(prompt, pool);
  prompts_.clear();
}

void BlocksAhead::copy_named(BlockPool& pool, SwapMoves& swap, PeerBlocks& peers, CopyCommands& commands) {
  if (!waits()) return;
  peers.refresh();
  std::size_t moving = 0;
  for (const Prompt& prompt : prompts_) moving += prompt.blocks.size() - prompt.arrived;
  const std::int32_t kept_free = pool.status().total / kKeptFree;
  for (Prompt& prompt : prompts_) {
    while (prompt.blocks.size() < prompt.names.size()) {
      const BlockHash& name = prompt.names[prompt.blocks.size()];
      BlockId block = pool.find(name);
      if (block != kNoBlock) {
        pool.share(block);
      } else {
        if (moving >= kMostMoving || !commands.may_fetch(0) || pool.available() <= kept_free) break;
        const PeerBlock source = peers.find(name);
        if (source.block == kNoBlock) break;
        block = swap.take(pool, commands);
        // Whoever finds the block waits for this copy. CacheManager does the same for a lease.
        pool.begin_fill(block);
        pool.publish(block, name, static_cast<std::int32_t>(prompt.blocks.size()));
        commands.add(source, block);
        ++moving;
        ++copied_;
      }
      prompt.blocks.push_back(block);
    }
  }
}

void BlocksAhead::copies_ended(BlockPool& pool) {
  std::erase_if(prompts_, [&](Prompt& prompt) {
    while (prompt.arrived < prompt.blocks.size()) {
      const BlockId block = prompt.blocks[prompt.arrived];
      if (pool.filling(block)) return false;
      if (pool.contents(block) == BlockHash{}) {
        release(prompt, pool);
        return ++prompt.failures == kMostFailures;
      }
      ++prompt.arrived;
    }
    return false;
  });
}

bool BlocksAhead::give_up_one(const RequestKey& spared, BlockPool& pool) {
  for (auto prompt = prompts_.rbegin(); prompt != prompts_.rend(); ++prompt) {
    if (prompt->key == spared) continue;
    release(*prompt, pool);
    prompts_.erase(std::prev(prompt.base()));
    return true;
  }
  return false;
}

bool BlocksAhead::waits() const {
  return std::ranges::any_of(prompts_,
                             [](const Prompt& prompt) { return prompt.blocks.size() < prompt.names.size(); });
}

void BlocksAhead::add_holders(std::vector<std::int32_t>& holders) const {
  for (const Prompt& prompt : prompts_) {
    for (const BlockId block : prompt.blocks) ++holders[static_cast<std::size_t>(block)];
  }
}

/// In reverse, as CacheManager releases a lease.
void BlocksAhead::release(Prompt& prompt, BlockPool& pool) {
  for (auto block = prompt.blocks.rbegin(); block != prompt.blocks.rend(); ++block) pool.drop(*block);
  prompt.blocks.clear();
  prompt.arrived = 0;
}

}  // namespace troupe
