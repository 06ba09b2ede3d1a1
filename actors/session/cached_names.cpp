#include "actors/session/cached_names.h"

#include <algorithm>

namespace troupe {

CachedNames::CachedNames(std::vector<std::shared_ptr<const ipc::BlockNames>> tables) {
  for (auto& names : tables) tables_.push_back({std::move(names)});
}

void CachedNames::refresh() {
  for (std::uint32_t engine = 0; engine < tables_.size(); ++engine) refresh(engine);
}

void CachedNames::refresh(std::uint32_t engine) {
  auto& [names, memory, seen] = tables_[engine];
  if (names == nullptr) return;
  const std::uint64_t now = names->memory();
  const bool same = now == memory && now != 0;
  memory = now;
  const auto end = static_cast<std::size_t>(now == 0 ? 0 : names->end());
  for (std::size_t i = same ? end : 0; i < seen.size(); ++i) forget(engine, seen[i]);
  if (!same) seen.clear();
  seen.resize(end);
  for (std::size_t i = 0; i < end; ++i) {
    const auto block = static_cast<BlockId>(i);
    const std::uint64_t state = names->state(block);
    if (state == seen[i].state) continue;
    forget(engine, seen[i]);
    seen[i].state = state;  // a change after this is seen by the next refresh()
    ipc::BlockName read;
    if (!names->read(block, read)) continue;
    seen[i].name = read.hash;
    add(engine, read.hash);
  }
}

void CachedNames::add(std::uint32_t engine, const BlockHash& name) {
  const auto [known, is_new] = holders_.try_emplace(name, Holders{{engine, 1}, {}});
  if (is_new) return;
  auto& [first, others] = known->second;
  const auto other = std::ranges::find(others, engine, &Holder::engine);
  if (first.engine == engine) {
    ++first.blocks;
  } else if (other != others.end()) {
    ++other->blocks;
  } else {
    others.push_back({engine, 1});
  }
}

void CachedNames::forget(std::uint32_t engine, Seen& seen) {
  if (seen.name == BlockHash{}) return;
  const auto known = holders_.find(std::exchange(seen.name, BlockHash{}));
  auto& [first, others] = known->second;
  const auto other = std::ranges::find(others, engine, &Holder::engine);
  Holder& holder = first.engine == engine ? first : *other;
  if (--holder.blocks > 0) return;
  if (others.empty()) {
    holders_.erase(known);
    return;
  }
  holder = others.back();
  others.pop_back();
}

void RecentNames::put(const BlockHash& name, std::uint32_t engine) {
  if (const auto known = index_.find(name); known != index_.end()) {
    known->second->engine = engine;
    entries_.splice(entries_.begin(), entries_, known->second);
    return;
  }
  entries_.push_front({name, engine});
  index_.emplace(name, entries_.begin());
  if (entries_.size() <= kMost) return;
  index_.erase(entries_.back().name);
  entries_.pop_back();
}

std::optional<std::uint32_t> RecentNames::engine_of(const BlockHash& name) const {
  const auto known = index_.find(name);
  return known == index_.end() ? std::nullopt : std::optional(known->second->engine);
}

}  // namespace troupe
