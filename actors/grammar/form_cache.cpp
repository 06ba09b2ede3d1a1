#include "actors/grammar/form_cache.h"

#include <utility>

namespace troupe {

std::string FormCache::key(const grammar::Source& source) {
  std::string key;
  key += static_cast<char>('0' + static_cast<int>(source.kind));
  key += source.any_whitespace ? 'w' : '-';
  return key + source.text;
}

const CompileOutcome* FormCache::find(const grammar::Source& source) {
  const auto it = index_.find(key(source));
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return &it->second->outcome;
}

void FormCache::put(const grammar::Source& source, CompileOutcome outcome) {
  Entry entry{key(source), std::move(outcome), 0};
  entry.bytes = 2 * entry.key.size() + sizeof(Entry);
  if (entry.outcome.form) entry.bytes += entry.outcome.form->memory_bytes();
  if (const auto it = index_.find(entry.key); it != index_.end()) {
    const auto place = it->second;
    bytes_ -= place->bytes;
    index_.erase(it);
    entries_.erase(place);
  }
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  index_.emplace(entries_.front().key, entries_.begin());
  while (!entries_.empty() && (bytes_ > max_bytes_ || entries_.size() > max_entries_)) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace troupe
