#pragma once
// Totals of the scheduler, and counts between two results.
#include <cstdint>
#include <utility>

#include "actors/observation_messages.h"
#include "actors/scheduler/result_reader.h"
#include "actors/scheduler/sequence.h"

namespace troupe {

/// Totals since construction, for metrics and tests.
struct SchedulerTotals {
  std::uint64_t steps = 0;
  std::uint64_t stale_results = 0;
  std::uint64_t malformed_results = 0;
  std::uint64_t discarded_tokens = 0;  ///< sampled after their sequence had ended
  std::uint64_t preempted = 0;
  std::uint64_t stalled_rows = 0;  ///< rows skipped in a step for lack of a block
  std::int64_t prompt_tokens =
      0;  ///< of all requests submitted first here, each counted at its first admission
  std::int64_t cached_tokens = 0;   ///< of these, found in the prefix cache,
  std::int64_t swapped_tokens = 0;  ///< and of those, in the swap space
  std::uint64_t fetches = 0;        ///< admissions that waited for copies from the swap space
  std::uint64_t failed_fetches = 0;
  std::uint64_t encoded = 0;    ///< images and videos
  metrics::DraftCounts drafts;  ///< of all steps
};

/// Counts events; decides nothing.
class SchedulerCounters {
 public:
  void step_planned() { ++totals_.steps; }
  void row_stalled() { ++totals_.stalled_rows; }
  void tokens_discarded(std::int32_t count) { totals_.discarded_tokens += static_cast<std::uint64_t>(count); }
  /// A row from a last token, of which `taken` tokens are reported.
  void drafted(const wire::ResultRow& row, std::int32_t taken, StepStats& stats) {
    metrics::DraftCounts counts;
    counts.add_row(row.drafts, std::max(0, row.count - 1), taken);
    stats.drafts += counts;
    totals_.drafts += counts;
  }
  void fetch_began() { ++totals_.fetches; }
  void fetch_failed() { ++totals_.failed_fetches; }
  void encoded(double seconds, bool cached) {
    if (cached) {
      ++since_step_.encodings_found;
      return;
    }
    ++since_step_.encoded;
    since_step_.encode_s += seconds;
    ++totals_.encoded;
  }
  void preempted() { ++totals_.preempted, ++since_step_.preempted; }
  void result_dropped(Committed verdict) {
    ++(verdict == Committed::stale ? totals_.stale_results : totals_.malformed_results);
  }
  /// The sequence's first admission: `swapped` of its ScheduledSequence::cached_tokens came from the swap
  /// space.
  void admitted(const ScheduledSequence& sequence, std::int32_t swapped);

  const SchedulerTotals& totals() const { return totals_; }
  /// What was counted since the last call.
  StepStats take_since_step() { return std::exchange(since_step_, {}); }

 private:
  SchedulerTotals totals_;
  StepStats since_step_;
};

}  // namespace troupe
