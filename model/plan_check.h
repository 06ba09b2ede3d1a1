#pragma once
// Judges what comes out of the rings before anything acts on it.
//
// An executor takes plan n+1 while plan n still runs, so a plan cannot be checked against the sequences
// as they are; it is checked against what they will be once everything taken before has run. That state
// is a few integers per slot, kept here.
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "ipc/wire.h"

namespace troupe::model {

/// Bytes of stop ids and logit biases that one sequence may bring.
inline constexpr std::size_t kMaxSamplingBytes = std::size_t{1} << 18;

/// One thread. A record that was refused has changed nothing.
class PlanCheck {
 public:
  explicit PlanCheck(const wire::Capacity& capacity);

  /// Accepts a plan when applying it in the documented order (finished, started, tokens, blocks, rows) only
  /// ever touches what exists:
  /// - the step is the one after the last;
  /// - slots, block ids, token ids and lengths are within the capacity, parameters are finite and in range;
  /// - a sequence starts in a free slot, its ids and blocks arrive without gaps, ids never beyond
  ///   known_tokens;
  /// - a row runs ids that are known by then into blocks that the sequence has, at most one row per
  ///   sequence; it samples only at the last known id. For prompt logprobs the id after the row is known;
  /// - the result with all logprobs asked for fits a record.
  /// A row, a TokenRun or an ending of a generation that no longer lives in its slot is late, not wrong: it
  /// is accepted and will be passed over.
  Status admit(const wire::RecordView& record, const wire::StepPlan& plan);

  /// Accepts copies between blocks that exist; no block is a target twice, or both source and target.
  Status admit(const wire::RecordView& record, const wire::CacheCommand& command);

  /// Forgets all sequences; steps and commands count from 1 again.
  void reset();

 private:
  struct Slot {
    std::uint32_t generation = 0;
    bool live = false;
    bool has_row = false;  // in the plan at hand
    std::int32_t prompt_tokens = 0;
    std::int32_t known_tokens = 0;
    std::int32_t ids = 0;  // [0, ids) are known, brought or sampled
    std::int32_t blocks = 0;
    std::int32_t logprobs = -1;  // as in wire::Sampling
    std::int32_t prompt_logprobs = -1;
  };

  // What the rows seen so far cost.
  struct StepSize {
    std::int64_t tokens = 0;
    std::int64_t result_bytes = 0;
  };

  Status apply(const wire::RecordView& record, const wire::StepPlan& plan);
  Status start(const wire::RecordView& record, const wire::StartSequence& start);
  Status take_ids(const wire::RecordView& record, const wire::TokenRun& run);
  Status take_blocks(const wire::RecordView& record, const wire::BlockRun& run);
  Status take_row(const wire::PlanRow& row, StepSize& size);
  static Status check_fits(const wire::PlanRow& row, const StepSize& size);
  // The slot, or null when it is out of range (an error) or holds another generation (late).
  Slot* find(SlotRef ref);
  bool in_range(SlotRef ref) const { return ref.slot < slots_.size(); }

  const wire::Capacity capacity_;
  std::vector<Slot> slots_;
  std::vector<Slot> before_;   // of the plan at hand, to go back to
  std::vector<char> touched_;  // blocks of the command at hand
  std::uint64_t step_ = 0;
  std::uint64_t command_ = 0;
};

}  // namespace troupe::model
