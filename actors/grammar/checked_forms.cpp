#include "actors/grammar/checked_forms.h"

#include <span>
#include <string>
#include <utility>

namespace troupe {

const CheckedForm* CheckedForms::find(const BlockHash& form) {
  const auto it = index_.find(form);
  if (it == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return &it->second->checked;
}

void CheckedForms::put(const BlockHash& form, CheckedForm checked) {
  if (index_.contains(form)) return;  // equal forms are checked with the same outcome
  Entry entry{form, std::move(checked), sizeof(Entry)};
  entry.bytes += entry.checked.source.text.size() + entry.checked.refusal.message.size() +
                 entry.checked.refusal.param.size();
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  index_.emplace(form, entries_.begin());
  while (bytes_ > max_bytes_ || entries_.size() > max_entries_) {
    bytes_ -= entries_.back().bytes;
    index_.erase(entries_.back().form);
    entries_.pop_back();
  }
}

BlockHash name_of(const grammar::Form& form, const HashKey& key) {
  std::string text(1, static_cast<char>('0' + static_cast<int>(form.kind)));
  text += form.param;
  text += '\0';
  text += form.value;
  return siphash(key, std::as_bytes(std::span(text)));
}

}  // namespace troupe
