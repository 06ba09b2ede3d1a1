#include "actors/session/recent_names.h"

namespace troupe {

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
