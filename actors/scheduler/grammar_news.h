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
class GrammarNews {
 public:
  /// Rows of the epoch before are void.
  void begin_epoch(std::uint32_t epoch) {
    news_.epoch = epoch;
    news_.rows.clear();
  }

  void start(const RequestKey& key, std::uint64_t grammar) { news_.starts.push_back({key, grammar}); }

  /// The sequence's next output tokens.
  void tokens(const RequestKey& key, std::span<const TokenId> ids) {
    if (ids.empty()) return;
    news_.sequences.push_back(
        {key, static_cast<std::int32_t>(news_.tokens.size()), static_cast<std::int32_t>(ids.size())});
    news_.tokens.insert(news_.tokens.end(), ids.begin(), ids.end());
  }

  void end(const RequestKey& key) { news_.ends.push_back(key); }

  /// A gated row of plan `step`. The rows of the plan before must have been taken.
  void row(std::uint64_t step, const MaskAsk& ask) {
    TROUPE_CHECK(news_.rows.empty() || news_.step == step);
    news_.step = step;
    news_.rows.push_back(ask);
  }

  /// Moves everything to `out`; false when there is nothing.
  bool take(GrammarStep& out) {
    if (news_.starts.empty() && news_.sequences.empty() && news_.ends.empty() && news_.rows.empty())
      return false;
    out = std::exchange(news_, {.epoch = news_.epoch});
    return true;
  }

 private:
  GrammarStep news_;
};

}  // namespace troupe
