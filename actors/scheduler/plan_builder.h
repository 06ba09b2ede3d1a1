#pragma once
// Writes one wire::StepPlan within its limits: tokens of a step, ids of a plan, bytes of a record.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/scheduler/sequence.h"
#include "ipc/wire.h"

namespace troupe {

/// Call begin(), then the adders, then finish(). An adder that returns false, or less than was wanted, has no
/// space left in this plan; the rest goes into a later one. Memory is reused.
class PlanBuilder {
 public:
  explicit PlanBuilder(std::size_t max_ids) : max_ids_(max_ids) {}

  /// `max_sampled`: tokens that all rows may yield together.
  void begin(std::uint32_t epoch, std::int32_t max_tokens, std::int32_t max_sampled = INT32_MAX);

  /// Tokens that rows may still run.
  std::int32_t tokens_left() const { return tokens_left_; }

  bool finished(SlotRef slot);
  /// Also counts the sequence's SequenceMedia, which goes with the plan.
  bool start(const ScheduledSequence& sequence);
  /// Adds `ids`, which begin at `position`. Returns how many of them fitted.
  std::int32_t ids(SlotRef slot, std::int32_t position, std::span<const TokenId> ids);
  bool blocks(SlotRef slot, std::int32_t first, std::span<const BlockId> blocks);
  /// How many of `tokens` (1 or more) a row may run so that its logprobs fit the result: each scored prompt
  /// position and the sampled token take space in that record.
  std::int32_t fitting(const ScheduledSequence& sequence, std::int32_t tokens) const;
  /// Likewise for a row with kFromLast, which yields up to `tokens` tokens.
  std::int32_t fitting_from_last(const ScheduledSequence& sequence, std::int32_t tokens) const;
  /// `flags`: wire::RowFlags. Requires tokens <= tokens_left() and tokens <= fitting().
  bool row(const ScheduledSequence& sequence, std::int32_t tokens, std::uint32_t flags);

  /// True if the plan holds at most finished slots: it is not worth sending.
  bool empty() const { return rows_.empty() && runs_.empty() && started_.empty() && block_runs_.empty(); }

  /// The record's bytes, valid until the next begin().
  std::span<const std::byte> finish(std::uint64_t step, std::uint64_t after_cache_command);

 private:
  bool take(std::size_t bytes);

  const std::size_t max_ids_;
  std::size_t ids_left_ = 0;
  std::size_t bytes_left_ = 0;
  std::size_t result_left_ = 0;  ///< bytes still free in the StepResult that answers the plan
  std::int32_t tokens_left_ = 0;
  std::int32_t sampled_left_ = 0;
  wire::RecordWriter<wire::StepPlan> writer_;
  std::vector<SlotRef> finished_;
  std::vector<wire::StartSequence> started_;
  std::vector<wire::TokenRun> runs_;
  std::vector<wire::BlockRun> block_runs_;
  std::vector<wire::PlanRow> rows_;
};

/// Bytes of stop ids and logit biases that one sequence may bring, so that the largest single sequence
/// still fits a record.
inline constexpr std::size_t kMaxSamplingBytes = std::size_t{1} << 18;

}  // namespace troupe
