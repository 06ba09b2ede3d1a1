#pragma once
// The sequences that a worker holds: for each slot its ids, block table and sampling parameters.
//
// The engine sends only what is new; the table keeps the rest. It turns a plan into a batch. It does not
// check plans: PlanCheck has admitted each before.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/media_positions.h"
#include "ipc/wire.h"
#include "model/checkpoint/vision_spec.h"
#include "model/drafts/drafter.h"
#include "model/step_batch.h"

namespace troupe::model {

/// A token that is sampled by a step which was applied and not committed. Rows may contain it: a device with
/// a queue of its own reads the token from where that step stores it.
inline constexpr TokenId kUnsampled = -1;

/// Of a device that derives rows from a last token, and drafts itself (kernels/derived_rows.h).
struct DerivedLimits {
  /// Rows of a sequence for which decode steps are prepared, ascending; empty: no row is derived.
  std::vector<std::int32_t> widths{};
  std::int32_t most_rows = 0;  ///< of a step whose sequences all have the same number of rows
};

/// One thread. A slot keeps its memory for the next sequence, so steps do not allocate once the longest
/// sequences have passed.
class WorkerSequences {
 public:
  /// `vision`: of a model that takes images and videos. `drafter`: null without speculation. With one every
  /// batch is committed before the next is applied. With `derived` batches are resolved before they are
  /// committed.
  explicit WorkerSequences(int max_slots, const std::optional<VisionSpec>& vision = {},
                           std::unique_ptr<Drafter> drafter = nullptr, DerivedLimits derived = {})
      : slots_(static_cast<std::size_t>(max_slots)),
        vision_(vision),
        drafter_(std::move(drafter)),
        limits_(std::move(derived)) {}

  /// The items of a sequence that a later plan starts.
  void announce(SlotRef slot, const std::vector<MediaItem>& items);

  /// Applies everything of an admitted plan but its results, and describes its rows in `batch`.
  void apply(const wire::RecordView& record, const wire::StepPlan& plan, StepBatch& batch);

  /// Stores the tokens that a batch of apply() sampled; results[i] belongs to batch.samples[i]. Batches are
  /// committed in the order in which they were applied. Sequences that have left their slot since are
  /// skipped. A row that failed counts as token 0: the engine ends its sequence, and rows already planned for
  /// it stay valid. When a row that samples again is applied, the batches with the sequence before it have
  /// been committed.
  void commit(const StepBatch& batch, std::span<const kernels::SampleResult> results);

  /// Drafts what the next row of each sequence verifies that says so, and adds it to the batch, which was
  /// committed last. Where the sequence's form forces what follows, the draft begins with that.
  void propose(StepBatch& batch, std::span<const kernels::SampleResult> results);
  /// The same where the device drafts: proposals[i] of batch.proposing[i]. The batch has been resolved.
  static void propose(StepBatch& batch, std::span<const kernels::Proposal> proposals);

  /// Puts into the batch's outcomes what its derived sequences have come to: yields[i] of batch.derived[i].
  void resolve(StepBatch& batch, std::span<const kernels::Yield> yields,
               std::span<const kernels::SampleResult> results) const;

  /// True if the slot holds a live sequence of this generation.
  bool holds(SlotRef ref) const;

  void reset();

 private:
  struct Media {
    std::vector<MediaItem> items;
    MediaPositions positions;
  };

  // A decode row reads these members and not the elements of the vectors: those lie on hundreds of other
  // pages and have left the caches by the next step of a large model. Nor does it read the last members.
  struct alignas(64) Slot {
    bool live = false;
    std::uint32_t generation = 0;
    std::int32_t prompt_tokens = 0;
    std::int32_t max_tokens = 0;
    std::int32_t proposes = 0;        // as in wire::StartSequence
    std::int32_t wanted_drafts = 0;   // by the last row that samples
    std::int32_t last_block_at = -1;  // last_block is a copy of blocks[last_block_at]; -1: of none
    BlockId last_block = 0;
    // Prompt and committed output; rows have kUnsampled beyond that. Draft tokens from apply() to commit().
    std::vector<TokenId> ids;
    std::vector<BlockId> blocks;
    wire::Sampling sampling{};
    std::vector<TokenId> stop_ids;
    std::vector<kernels::TokenBias> bias;
    std::unique_ptr<const Media> media;  // null: text alone
    std::vector<TokenId> proposed;       // with `proposes`: draft tokens behind `ids`
    bool proposed_predicted = false;     // Drafts::predicted
  };

  Slot* find(SlotRef ref);
  void start(const wire::RecordView& record, const wire::StartSequence& start);
  void add_row(const wire::PlanRow& row, StepBatch& batch);
  void add_row_from_last(const wire::PlanRow& row, Slot& slot, StepBatch& batch);
  bool derives() const { return !limits_.widths.empty(); }
  // Rows of each sequence of the plan if all decode and a step of that size may run; else 0.
  std::int32_t width_of(std::span<const wire::PlanRow> rows);
  void add_derived_row(const wire::PlanRow& row, Slot& slot, StepBatch& batch);
  // Of the last sequence of the batch, which samples nothing yet.
  static void add_drafting(std::uint32_t index, const Slot& slot, StepBatch& batch);
  static void add_proposing(std::uint32_t index, const Slot& slot, StepBatch& batch);
  void pad_to_width(StepBatch& batch) const;
  Drafts add_drafts(std::uint32_t slot, std::int32_t most);
  Drafts draft(std::uint32_t slot, std::span<TokenId> out);
  Drafts draft(std::uint32_t slot, std::span<const TokenId> forced, std::span<TokenId> out);
  void place_row(const wire::PlanRow& row, Slot& slot, std::int32_t position, std::int32_t tokens,
                 StepBatch& batch);
  void add_sample(SlotRef ref, const Slot& slot, std::int32_t known, bool gated, StepBatch& batch);
  static kernels::SampleRow sample_row(const Slot& slot, std::int32_t known);
  void advance(const StepBatch& batch, std::span<const kernels::SampleResult> results);
  void describe_media(StepBatch& batch) const;
  void add_media(const Slot& slot, SlotRef ref, const kernels::SequenceRows& rows, StepBatch& batch) const;
  void add_scores(const wire::PlanRow& row, const Slot& slot, std::int32_t first_row, StepBatch& batch);

  std::vector<Slot> slots_;
  const std::optional<VisionSpec> vision_;
  const std::unique_ptr<Drafter> drafter_;
  const DerivedLimits limits_;
  std::map<SlotRef, std::unique_ptr<const Media>> announced_;
  std::vector<Advanced> advanced_;  // scratch
};

}  // namespace troupe::model
