#pragma once
// What may be submitted.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/waiting_queue.h"
#include "actors/scheduler/worker_limits.h"
#include "base/status.h"
#include "config/options.h"

namespace troupe {

/// Checks a submission against the worker's limits, the sequences that are known, and the room of the queue.
/// Changes nothing but its result.
class SubmissionRules {
 public:
  explicit SubmissionRules(const config::SchedulerOptions& options)
      : max_queued_requests_(options.max_queued_requests), max_queued_tokens_(options.max_queued_tokens) {}

  /// Sets origins[i] to the index of the sequence whose prompt sequence i runs: i itself, or an earlier one
  /// without a parent. Errors:
  ///   unavailable       no worker has been attached yet
  ///   overloaded        the queue is full, in sequences or in tokens; never with Submit::attempt above 0
  ///   invalid_argument  a sequence can never run: too long, empty, no output wanted, unknown parent, …
  Status check(const Submit& request, const WorkerLimits& worker, const ScheduledSequences& known,
               const WaitingQueue& queue, std::vector<std::size_t>& origins) const;

 private:
  Status check_sequence(const SequenceSpec& spec, const SequenceSpec& prompt, std::uint32_t attempt,
                        const WorkerLimits& worker, const ScheduledSequences& known) const;
  Status check_room(std::int64_t sequences, std::int64_t tokens, const WaitingQueue::Load& waiting) const;

  const std::int64_t max_queued_requests_;
  const std::int64_t max_queued_tokens_;
};

}  // namespace troupe
