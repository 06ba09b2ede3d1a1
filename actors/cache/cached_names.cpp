#include "actors/cache/cached_names.h"

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
  for (std::size_t i = same ? end : 0; i < seen.size(); ++i) forget({engine, static_cast<BlockId>(i)});
  if (!same) seen.clear();
  seen.resize(end);
  for (std::size_t i = 0; i < end; ++i) {
    const auto block = static_cast<BlockId>(i);
    const std::uint64_t state = names->state(block);
    if (state == seen[i].state) continue;
    forget({engine, block});
    seen[i].state = state;  // a change after this is seen by the next refresh()
    ipc::BlockName read;
    if (!names->read(block, read)) continue;
    seen[i].name = read.hash;
    add(read.hash, {engine, block});
  }
}

void CachedNames::add(const BlockHash& name, Holder holder) {
  const auto [known, is_new] = holders_.try_emplace(name, Holders{holder, {}});
  if (!is_new) known->second.others.push_back(holder);
}

void CachedNames::forget(Holder holder) {
  const BlockHash name =
      std::exchange(tables_[holder.engine].seen[static_cast<std::size_t>(holder.block)].name, BlockHash{});
  if (name == BlockHash{}) return;
  const auto known = holders_.find(name);
  auto& [first, others] = known->second;
  if (others.empty()) {
    holders_.erase(known);
    return;
  }
  Holder& place = first == holder ? first : *std::ranges::find(others, holder);
  place = others.back();
  others.pop_back();
}

}  // namespace troupe
