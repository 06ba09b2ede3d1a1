#pragma once
// What SCHEDULER tells GRAMMAR, gathered until it is sent.
#include <cstdint>
#include <span>
#include <utility>

#include "actors/messages.h"
#include "base/check.h"
#include "base/ids.h"

namespace troupe {

/// Empty, and without memory of its own, while no sequence has a grammar.
class GrammarUpdates {
 public:
  /// Rows of the epoch before are void.
  void begin_epoch(std::uint32_t epoch) {
    pending_.epoch = epoch;
    pending_.rows.clear();
  }

  void start(const RequestKey& key, std::uint64_t grammar, std::int32_t gated_from) {
    pending_.starts.push_back({key, grammar, gated_from});
  }

  /// The sequence's next output tokens, and the draft tokens of its next row.
  void tokens(const RequestKey& key, std::span<const TokenId> ids, std::span<const TokenId> drafts = {}) {
    pending_.sequences.push_back({key, static_cast<std::int32_t>(pending_.tokens.size()),
                                  static_cast<std::int32_t>(ids.size()),
                                  static_cast<std::int32_t>(drafts.size())});
    pending_.tokens.insert(pending_.tokens.end(), ids.begin(), ids.end());
    pending_.tokens.insert(pending_.tokens.end(), drafts.begin(), drafts.end());
  }

  void end(const RequestKey& key) { pending_.ends.push_back(key); }

  /// A gated row of plan `step`. The rows of the plan before must have been taken.
  void row(std::uint64_t step, const MaskAsk& ask) {
    TROUPE_CHECK(pending_.rows.empty() || pending_.step == step);
    pending_.step = step;
    pending_.rows.push_back(ask);
  }

  /// Moves everything to `out`; false when there is nothing.
  bool take(GrammarStep& out) {
    if (pending_.starts.empty() && pending_.sequences.empty() && pending_.ends.empty() &&
        pending_.rows.empty())
      return false;
    out = std::exchange(pending_, {.epoch = pending_.epoch});
    return true;
  }

 private:
  GrammarStep pending_;
};

}  // namespace troupe
