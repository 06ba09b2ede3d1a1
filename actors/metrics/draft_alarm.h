#pragma once
// Notices a draft layer that does not fit its model: nearly all that it drafts is wrong, which slows the
// server down and is seen nowhere else, since answers stay right.
#include <cstdint>
#include <optional>

#include "actors/metrics/draft_counts.h"

namespace troupe::metrics {

class DraftAlarm {
 public:
  static constexpr std::int64_t kDrafted = 1000;  ///< draft tokens that are judged together
  static constexpr double kLeastAccepted = 0.05;  ///< share of them

  /// The share that was accepted, when it has just been too low for the first time since it was enough.
  /// `counts` are those of one step.
  std::optional<double> observe(const DraftCounts& counts) {
    drafted_ += counts.drafted;
    accepted_ += counts.accepted;
    if (drafted_ < kDrafted) return std::nullopt;
    const double share = static_cast<double>(accepted_) / static_cast<double>(drafted_);
    drafted_ = accepted_ = 0;
    const bool was_low = low_;
    low_ = share < kLeastAccepted;
    if (!low_ || was_low) return std::nullopt;
    return share;
  }

 private:
  std::int64_t drafted_ = 0;  ///< since the last judgement, as the next
  std::int64_t accepted_ = 0;
  bool low_ = false;
};

}  // namespace troupe::metrics
