#pragma once
// The sequences that a worker holds: for each slot its ids, block table and sampling parameters.
//
// The engine sends only what is new. The table keeps the rest, and is the one place where a plan turns
// into a batch. It believes its input: PlanCheck has seen every plan before.
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/wire.h"
#include "model/step_batch.h"

namespace troupe::model {

/// A token that is sampled by a step that was applied and not committed. Rows may name it: a device with a
/// queue of its own takes it from where that step leaves it, and needs no commit at all.
inline constexpr TokenId kUnsampled = -1;

/// One thread. Memory of a slot is kept for its next tenant, so steps do not allocate once the longest
/// sequences have passed through.
class WorkerSequences {
 public:
  explicit WorkerSequences(int max_slots) : slots_(static_cast<std::size_t>(max_slots)) {}

  /// Applies an admitted plan, everything but its results, and describes its rows in `batch`.
  void apply(const wire::RecordView& record, const wire::StepPlan& plan, StepBatch& batch);

  /// Fills in the tokens that apply()'s batch sampled; results[i] belongs to batch.samples[i]. Batches come
  /// in the order in which they were applied; sequences that have left their slot since are passed over. A
  /// row that failed counts as token 0: the engine ends its sequence, and rows already planned for it stay
  /// sound.
  void commit(const StepBatch& batch, std::span<const kernels::SampleResult> results);

  /// Whether the slot holds this generation.
  bool holds(SlotRef ref) const;

  void reset();

 private:
  // A decode row reads this and not what the lists hold: they lie on pages of their own, hundreds of them,
  // and are out of the caches by the next step of a large model.
  struct Slot {
    bool live = false;
    std::uint32_t generation = 0;
    std::int32_t prompt_tokens = 0;
    std::int32_t last_block_at = -1;  // of `blocks`, what last_block is a copy of; -1: none
    BlockId last_block = 0;
    wire::Sampling sampling{};
    std::vector<TokenId> ids;  // prompt and committed output; all that rows may name behind it is kUnsampled
    std::vector<BlockId> blocks;
    std::vector<TokenId> stop_ids;
    std::vector<kernels::TokenBias> bias;
  };

  Slot* find(SlotRef ref);
  void start(const wire::RecordView& record, const wire::StartSequence& start);
  void add_row(const wire::PlanRow& row, StepBatch& batch);
  void add_sample(const wire::PlanRow& row, const Slot& slot, StepBatch& batch);
  void add_scores(const wire::PlanRow& row, const Slot& slot, std::int32_t first_row, StepBatch& batch);

  std::vector<Slot> slots_;
};

}  // namespace troupe::model
