#pragma once
// Writes one step's piece of pinned memory (kernels/step_inputs.h): the changes of the sequences on the GPU,
// and the rows to run. The host computes device addresses and never reads device memory.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ipc/wire.h"
#include "kernels/step_inputs.h"
#include "model/cuda/sequence_table.h"
#include "model/cuda/step_memory.h"
#include "model/read_rows.h"
#include "model/step_batch.h"
#include "model/step_gates.h"

namespace troupe::model {

/// What pack() has written to a piece. Spans are the batch's own.
struct PackedStep {
  int rows = 0;
  int sequences = 0;
  int samples = 0;
  int scores = 0;
  int derived = 0;
  int width = 1;        ///< of a decode step: rows and samples of each sequence
  int most_tokens = 0;  ///< with `derived`: no sequence has more rows
  bool drafts = false;  ///< some derived sequence verifies draft tokens
  int wanted = 0;       ///< most draft tokens that are wanted of a sequence for the steps behind
  int deltas = 0;
  int gated = 0;      ///< rows whose masks the end of the step waits for
  int proposing = 0;  ///< sequences whose results say draft tokens
  /// Rows that want more top entries than a result holds, as in the batch, and the batch's number of entries.
  std::span<const kernels::TopRow> sample_tops;
  std::span<const kernels::TopRow> score_tops;
  int tops = 0;
  std::span<const std::int32_t> embeds;  ///< as in the batch
  std::optional<int> reads;              ///< ReadRows::count(), where it has found them
  /// Every sequence runs its last token and samples, no prompt token is scored, there are no tops, and all
  /// rows are text.
  bool decode = false;
  // Of rows of images and videos, as in the batch:
  bool spatial = false;  ///< rows have three positions (SequenceMemory::positions)
  bool sees = false;     ///< rows have kinds
  std::span<const EmbeddedRows> embedded;

  /// What ends the step comes apart, behind the gates of its samples (CudaSteps::end_held).
  bool held() const { return gated > 0 || proposing > 0; }
};

/// What the end of a held step reads; pinned memory.
struct HeldGates {
  std::span<std::int32_t> gates;  ///< OpenGates::gates
  std::span<kernels::ProposingSequence> proposing;
};

/// One thread. Does not allocate once the largest plan has passed.
class StepPacker {
 public:
  /// `slots`: of the capacity. Scored rows are numbered within groups of so many (CudaSteps::score_group).
  StepPacker(const SequenceMemory& memory, const kernels::PieceLayout& layout, int slots)
      : memory_(memory), layout_(layout), slots_(slots) {}

  /// The layout of pieces that any admitted plan fits into.
  static kernels::PieceLayout layout(const wire::Capacity& capacity);

  /// Turns rows [from, rows) and sequences and samples [from, sequences) of a piece into padding.
  static void pad(const kernels::PieceLayout& layout, std::span<std::byte> piece, int from, int rows,
                  int sequences);
  /// The same for the sequences [from, sequences) of a decode step, `width` rows and samples each: it is
  /// padded to the size of its graph.
  static void pad_decode(const kernels::PieceLayout& layout, std::span<std::byte> piece, int from,
                         int sequences, int width);

  /// `batch` is the result of table.apply() for this plan. The piece is aligned to 8 bytes. Gated rows become
  /// padding among the samples.
  PackedStep pack(const wire::RecordView& record, const wire::StepPlan& plan, const WorkerSequences& table,
                  const StepBatch& batch, std::span<std::byte> piece);

  /// The rest of a held step that has all masks.
  static void pack_gates(const StepBatch& batch, const StepGates& gates, std::uint64_t step,
                         const HeldGates& to);

 private:
  void send(void* to, const void* from, std::size_t bytes);
  void pack_sequence_changes(const wire::RecordView& record, const wire::StepPlan& plan,
                             const WorkerSequences& table);
  void pack_rows(const StepBatch& batch);
  void pack_derived(const StepBatch& batch, PackedStep& packed);
  void pack_media(const StepBatch& batch, PackedStep& packed);
  int pack_samples(const StepBatch& batch);
  kernels::SampleRow sample_row(const StepBatch& batch, const SamplingOutcome& outcome) const;
  void pack_scores(const StepBatch& batch);
  void pack_tops(const StepBatch& batch);
  std::optional<int> pack_reads(const StepBatch& batch);

  BlockId* blocks(std::uint32_t slot) const { return memory_.blocks + slot * memory_.blocks_per_slot; }
  std::byte* lists(std::uint32_t slot) const;

  const SequenceMemory memory_;
  const kernels::PieceLayout layout_;
  const int slots_;
  std::span<std::byte> piece_;  // of the current step
  std::uint32_t words_end_ = 0;
  std::int32_t deltas_ = 0;
  std::vector<kernels::ScoreRow> scores_;
  std::vector<kernels::TopRow> score_tops_;
  std::vector<std::uint8_t> kinds_;
  ReadRows reads_;
};

}  // namespace troupe::model
