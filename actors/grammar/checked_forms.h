#pragma once
// What came of checking forms, by the forms as clients sent them, least recently used first to go. Pure.
#include <cstddef>
#include <list>
#include <map>

#include "actors/cache/block_hash.h"
#include "base/status.h"
#include "text/grammar/compiler.h"
#include "text/grammar/form.h"

namespace troupe {

struct CheckedForm {
  Status refusal;  ///< ok: the form is compiled from `source`
  grammar::Source source;
};

class CheckedForms {
 public:
  CheckedForms(std::size_t max_bytes, std::size_t max_entries)
      : max_bytes_(max_bytes), max_entries_(max_entries) {}

  /// Null when it is not there. Valid until the next put().
  const CheckedForm* find(const BlockHash& form);
  void put(const BlockHash& form, CheckedForm checked);

  std::size_t entries() const { return entries_.size(); }

 private:
  struct Entry {
    BlockHash form;
    CheckedForm checked;
    std::size_t bytes = 0;
  };

  const std::size_t max_bytes_;
  const std::size_t max_entries_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  ///< most recently used first
  std::map<BlockHash, std::list<Entry>::iterator> index_;
};

/// The name of a form as it was sent, its field included. Takes time in proportion to its bytes. The key is
/// secret, so no client can make two forms with the same name.
BlockHash name_of(const grammar::Form& form, const HashKey& key);

}  // namespace troupe
