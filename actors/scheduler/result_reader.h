#pragma once
// Reads a worker's result and checks it against the plan that it answers.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/sequence.h"
#include "actors/scheduler/steps_in_flight.h"
#include "ipc/wire.h"

namespace troupe {

enum class Committed {
  applied,
  stale,      ///< of an earlier epoch or step; dropped
  malformed,  ///< contradicts the plan or itself; dropped, and the worker cannot be trusted
};

/// Holds views of the last result; what they return is valid while the bytes given to read() are. Memory is
/// reused.
class ResultReader {
 public:
  /// Applied: the bytes are the result of the oldest step in flight, with one row for each plan row that
  /// samples, in the plan's order, and in each an error or as many tokens of the vocabulary as the row may
  /// yield, and as many draft tokens as it may propose. Otherwise nothing
  /// else may be called. `epoch` 0: no worker is attached, and every result is stale.
  Committed read(std::span<const std::byte> bytes, std::uint32_t epoch, const StepsInFlight& steps,
                 std::int32_t vocab_size);

  /// One for each plan row that samples.
  std::span<const wire::ResultRow> rows() const { return rows_; }
  /// What a row without an error has sampled, in order.
  std::span<const TokenId> tokens(const wire::ResultRow& row) const {
    return tokens_.subspan(static_cast<std::size_t>(row.first), static_cast<std::size_t>(row.count));
  }
  /// The draft tokens that the sequence's next row may verify.
  std::span<const TokenId> proposed(const wire::ResultRow& row) const {
    return tokens_.subspan(static_cast<std::size_t>(row.first + row.count),
                           static_cast<std::size_t>(row.proposed));
  }
  /// Time that the step took on the device.
  double seconds() const { return seconds_; }
  /// Time from the end of the step before it to its beginning; 0 for a worker's first step.
  double pause_s() const { return pause_s_; }

  /// True if the plan's row `row` brought logprobs that its sequence may report. While a sequence is late
  /// only those of prompt positions count.
  bool is_scored(std::size_t row, const ScheduledSequence& sequence) const {
    return first_score(row, sequence) != kNoScore;
  }
  /// Appends them to `step`: each prompt position once, even if it is computed again
  /// (ScheduledSequence::scored), and of output positions those whose tokens the sequence has.
  void pass_scores(std::size_t row, ScheduledSequence& sequence, StepTokens& step) const;
  /// Appends the embedding of a sequence that is embedded to `step`, and says in `tokens` where. False if the
  /// result lacks it.
  bool pass_embedding(const ScheduledSequence& sequence, SequenceTokens& tokens, StepTokens& step) const;

 private:
  static constexpr std::uint32_t kNoScore = UINT32_MAX;

  Committed judge(std::span<const std::byte> bytes, std::uint32_t epoch, const StepsInFlight& steps,
                  std::int32_t vocab_size);
  bool agrees(const wire::StepResult& result, const PlannedStep& step, std::int32_t vocab_size);
  void list_scores(const PlannedStep& step);
  std::uint32_t first_score(std::size_t row, const ScheduledSequence& s) const {
    return score_head_.empty() || (s.late && s.sampling.prompt_logprobs < 0) ? kNoScore : score_head_[row];
  }

  wire::RecordView view_;
  std::span<const wire::ResultRow> rows_;
  std::span<const TokenId> tokens_;
  std::span<const wire::TokenLogprobs> scores_;
  std::span<const wire::Embedding> embeddings_;
  double seconds_ = 0;
  double pause_s_ = 0;
  std::int64_t finished_ns_ = 0;  ///< of the last result
  // The logprobs of each plan row as a list: its head, and the next one of each. Empty without logprobs.
  std::vector<std::uint32_t> score_head_;
  std::vector<std::uint32_t> score_next_;
  std::vector<std::uint32_t> rows_of_slots_;  ///< scratch
};

/// What a client is told of a row's error.
const char* sentence(wire::RowError error);

}  // namespace troupe
