#pragma once
// Compiled forms and refusals by their sources, least recently used first to go. Pure.
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "text/grammar/compiler.h"

namespace troupe {

/// A compiled form, or why there is none. `status.param` and the message begin within the form.
struct CompileOutcome {
  Status status;
  std::shared_ptr<const grammar::CompiledForm> form;
};

class FormCache {
 public:
  FormCache(std::size_t max_bytes, std::size_t max_entries)
      : max_bytes_(max_bytes), max_entries_(max_entries) {}

  /// Null when it is not there. Valid until the next put().
  const CompileOutcome* find(const grammar::Source& source);

  /// Then forgets the least recently used until the bounds hold; what is larger than they are is not kept.
  void put(const grammar::Source& source, CompileOutcome outcome);

  std::size_t bytes() const { return bytes_; }
  std::size_t entries() const { return entries_.size(); }

  /// Equal for equal sources only.
  static std::string key(const grammar::Source& source);

 private:
  struct Entry {
    std::string key;
    CompileOutcome outcome;
    std::size_t bytes = 0;
  };

  const std::size_t max_bytes_;
  const std::size_t max_entries_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;                                                ///< most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;  ///< keys are those of the entries
};

}  // namespace troupe
