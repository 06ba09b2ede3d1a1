#pragma once
// Validates records read from the rings before the worker acts on them.
//
// An executor accepts plan n+1 while plan n still runs, so a plan is checked against the state its sequences
// will have when all plans accepted before it have run. That state is a few integers per slot, kept here.
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "ipc/wire.h"
#include "kernels/sample.h"

namespace troupe::model {

/// Most bytes of stop ids and logit biases that one sequence may have.
inline constexpr std::size_t kMaxSamplingBytes = std::size_t{1} << 18;

/// Most entries that rows of one admitted plan want beyond what a SampleResult holds (StepBatch::tops); 0 if
/// no row may want that many.
constexpr std::int32_t most_tops(const wire::Capacity& capacity) {
  constexpr auto kOfAResult = static_cast<std::int32_t>(wire::kMaxResultBytes / sizeof(wire::Logprob));
  return capacity.max_logprobs > kernels::kMaxTopLogprobs ? kOfAResult : 0;
}

/// Rows of logits of one admitted plan beyond one a sequence: those behind draft tokens.
constexpr std::int32_t drafted_rows(const wire::Capacity& capacity) {
  return capacity.max_drafts > 0 ? capacity.max_sampled - capacity.max_slots : 0;
}

/// Rows of logits of one admitted plan.
constexpr std::int32_t most_samples(const wire::Capacity& capacity) {
  return capacity.max_slots + drafted_rows(capacity);
}

/// For one thread. A refused record changes nothing.
class PlanCheck {
 public:
  explicit PlanCheck(const wire::Capacity& capacity);

  /// Accepts a plan if it is valid when its arrays are applied in the documented order (finished, started,
  /// tokens, blocks, rows):
  /// - its step follows the last accepted one;
  /// - slots, block ids, token ids and lengths are within the capacity, parameters are finite and in range;
  /// - a sequence starts in a free slot; its ids and blocks arrive without gaps, at most known_tokens ids;
  /// - a row computes known ids and writes to blocks that the sequence has, of ids that were sampled the last
  /// one alone;
  ///   a sequence has at most one row; a
  ///   row samples only if it ends at the last known id, and is gated only if it samples. A row that samples
  ///   again may end before ids that the slot has sampled: they are not known any more. A slot has at
  ///   most one gated row, late ones included. For prompt logprobs the id after the row is known;
  /// - a row with kFromLast is of a sequence whose known tokens have run, and of no other kind from then on;
  /// it begins no later than all its tokens would end, and ends before max_tokens; all rows together yield at
  /// most max_sampled tokens;
  /// - the result, with all requested logprobs, fits one record.
  /// A row, TokenRun, BlockRun or finished entry for a generation that its slot no longer holds is late, not
  /// an error: it is accepted and ignored.
  Status admit(const wire::RecordView& record, const wire::StepPlan& plan);

  /// Accepts copies between blocks that exist, of the KV memory and of the swap space, if no block is a
  /// target twice or both source and target.
  Status admit(const wire::RecordView& record, const wire::CacheCommand& command);

  /// Forgets all sequences; the next step and the next command have number 1 again.
  void reset();

 private:
  struct Slot {
    std::uint32_t generation = 0;
    bool live = false;
    bool has_row = false;        // in the current plan
    bool has_gated_row = false;  // likewise; of any generation
    bool from_last = false;      // has had a row with kFromLast; `ids` is an upper bound then
    std::int32_t prompt_tokens = 0;
    std::int32_t known_tokens = 0;
    std::int32_t max_tokens = 0;
    std::int32_t proposes = 0;
    std::int32_t ids = 0;  // ids at positions [0, ids) are known: received or sampled
    std::int32_t blocks = 0;
    std::int32_t logprobs = -1;  // as in wire::Sampling
    std::int32_t prompt_logprobs = -1;
    bool embeds = false;
  };

  // Sums over the rows checked so far.
  struct StepSize {
    std::int64_t tokens = 0;
    std::int64_t sampled = 0;
    std::int64_t result_bytes = 0;
  };

  Status apply(const wire::RecordView& record, const wire::StepPlan& plan);
  Status start(const wire::RecordView& record, const wire::StartSequence& start);
  Status take_ids(const wire::RecordView& record, const wire::TokenRun& run);
  Status take_blocks(const wire::RecordView& record, const wire::BlockRun& run);
  Status take_row(const wire::PlanRow& row, StepSize& size);
  Status check_from_last(const wire::PlanRow& row, Slot& slot) const;
  // The slot; null when it is out of range (an error) or does not hold this generation (late).
  Slot* find(SlotRef ref);
  bool in_range(SlotRef ref) const { return ref.slot < slots_.size(); }

  const wire::Capacity capacity_;
  std::vector<Slot> slots_;
  std::vector<Slot> before_;   // the slots before the current plan, restored if it is refused
  std::vector<char> touched_;  // per block: how often the current command writes it; all 0 between commands
  std::vector<char> swap_touched_;  // likewise for swap blocks
  std::uint64_t step_ = 0;
  std::uint64_t command_ = 0;
};

}  // namespace troupe::model
