#pragma once
// The steps of a GPU: their memory, their graphs, their launch, and access to their results.
//
// The first kernel of a step reads the piece of pinned memory that the host has written; the last one writes
// the outcome. The host waits for nothing in between. Decode steps, in which every sequence runs one token,
// are graphs, one for each size; all other steps are launched kernel by kernel.
//
// A step with gated rows is held: the same graph or kernels run, in which gated rows are padding for the
// sampling kernel, and the kernels behind it, told by a word in device memory, do nothing. When the host has
// all masks, it launches sampling once more, for the gated rows alone, and the kernels behind it. A step with
// sequences whose results say draft tokens is held too: only held steps launch the kernel that makes them.
// With a draft layer the kernels behind sampling take too long to run in vain, so they are a second graph,
// which held steps do not launch.
// Why this way:
// - No kernel waits for the host. A kernel that spins on a word in pinned memory, or a stream that waits
//   for one, would have to be freed at every reset and would look like a hang to whoever watches the GPU,
//   and a wait inside the graph would cost every step. Here a step that is given up is ended by one launch.
// - Steps without gated rows run the same graphs, with one more word to read, and there need be no second
//   set of graphs that end before sampling, with its memory and its time at the start.
// - It costs a gated step three launches of kernels, with drafts two more, with a draft layer that layer's,
//   and their overlap with those before. Masks come while the layers run, so these launches are queued before
//   the layers end. Gates and masks are copied on a stream beside, meanwhile.
// The next step is launched behind that, so the order on the stream is that of the plans.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/options.h"
#include "gpu/buffer.h"
#include "gpu/cuda.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/cuda_event.h"
#include "gpu/cuda_graph.h"
#include "gpu/pinned.h"
#include "ipc/wire.h"
#include "kernels/derived_rows.h"
#include "kernels/step_inputs.h"
#include "model/cuda/step_packer.h"
#include "model/decoder.h"

namespace troupe::model {

/// One thread. Device and decoder outlive it. All functions throw CudaError.
class CudaSteps {
 public:
  /// Allocates StepMemory and pinned host memory; the graphs come later. unavailable if there is too little.
  static Result<CudaSteps> make(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity,
                                const config::SpeculationOptions& speculation = {});

  /// Takes `scratch` bytes of working memory, the most that any step asks for (StepScratch), and freezes it.
  /// Then runs steps of many sizes, with padding rows, so that their kernels are loaded.
  void warm_up(std::size_t scratch);
  /// Captures the decode steps as graphs. After warm_up().
  void capture();
  /// All steps are launched kernel by kernel until the next capture(). The device must be idle.
  void drop_graphs() {
    for (DecodeGraphs& decodes : decodes_) decodes.graphs.clear(), decodes.ends.clear();
  }

  const SequenceMemory& sequence_memory() const { return memory_.sequences; }
  /// Rows that are scored at a time: there are as many rows of logits.
  int score_group() const { return capacity_.max_slots; }

  const kernels::PieceLayout& layout() const { return layout_; }
  /// The piece to pack the next step into. At most capacity.max_steps_in_flight steps may be in flight.
  std::span<std::byte> next_piece() const { return piece(launched_); }
  /// Starts the step that was packed into next_piece() and returns its number. finished() and the other
  /// accessors accept the number until max_steps_in_flight more steps were launched.
  std::uint64_t launch(const PackedStep& step);

  /// Pinned memory for the masks of the steps in flight, in the order of model/step_gates.h.
  std::span<std::uint32_t> gate_memory() const {
    return {reinterpret_cast<std::uint32_t*>(gate_masks_.data()),
            gate_masks_.bytes() / sizeof(std::uint32_t)};
  }
  /// For StepPacker::pack_gates of the last step launched, which is held (PackedStep::held).
  HeldGates held_gates() const;
  /// Starts the rest of the held step. `masks`: part of gate_memory(); they and held_gates() stay as they are
  /// until the step has finished. Required before the next launch().
  void end_held(std::span<const std::uint32_t> masks);
  /// Ends the held step without sampling; its outcome is meaningless.
  void give_up_held();

  bool finished(std::uint64_t step) const;
  /// Times on the GPU's own clock.
  const kernels::StepOutcome& outcome(std::uint64_t step) const;
  std::span<const kernels::Sampled> sampled(std::uint64_t step) const;
  /// Of the step's derived sequences; in a decode step one for each sequence.
  std::span<const kernels::Yield> yields(std::uint64_t step) const;
  /// Of the step's proposing sequences.
  std::span<const kernels::Proposal> proposals(std::uint64_t step) const;
  /// Filled in only for rows that want logprobs.
  std::span<const kernels::SampleResult> results(std::uint64_t step) const;
  /// Complete when an event behind the step has passed.
  std::span<const kernels::SampleResult> scores(std::uint64_t step) const;
  /// Likewise.
  std::span<const kernels::TopLogprob> tops(std::uint64_t step) const;
  /// Likewise: the rows of PackedStep::embeds, for Decoder::read_embeddings().
  const std::byte* embeddings(std::uint64_t step) const;

  /// Steps launched so far: the number of the last one.
  std::uint64_t launched() const { return launched_; }
  std::size_t graphs() const;
  /// Rows of a sequence in decode steps, ascending: 1, and with speculation one more than each number of
  /// draft tokens that plans ask for.
  std::vector<std::int32_t> widths() const;

 private:
  // Graphs of decode steps whose sequences have the same number of rows.
  struct DecodeGraphs {
    int width = 1;
    std::vector<int> buckets;       // sequences
    std::vector<CudaGraph> graphs;  // beside buckets
    std::vector<CudaGraph> ends;    // likewise, with a draft layer: what runs behind sampling
  };

  CudaSteps(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity, Buffer<Cuda> buffer,
            const config::SpeculationOptions& speculation);

  // The piece of the step before which `launched` were launched.
  std::span<std::byte> piece(std::uint64_t launched) const;
  int pieces() const { return capacity_.max_steps_in_flight + 1; }
  // Launch the kernels of a step of this size, up to sampling and behind it; the piece says which rows are
  // padding.
  void run_layers(const PackedStep& step, bool picks);
  void run_end(const PackedStep& step);
  void run(const PackedStep& step, bool picks) {
    run_layers(step, picks);
    run_end(step);
  }
  void run_scores(const PackedStep& step);
  void copy_embeddings(const PackedStep& step);
  void pad_pieces(int width, int sequences);
  PackedStep decode_step(int width, int sequences) const;
  void derive(const PackedStep& step);
  void accept(const PackedStep& step);
  void draft(const PackedStep& step);
  void propose(const PackedStep& step);
  void open_gates(int samples);
  void collect(const PackedStep& step);
  const std::byte* outcome_at(std::uint64_t step) const;

  Cuda* device_;
  Decoder<Cuda>* decoder_;
  wire::Capacity capacity_;
  Buffer<Cuda> buffer_;
  StepMemory memory_;
  kernels::PieceLayout layout_;
  PinnedMemory inputs_;
  PinnedMemory outcomes_;
  PinnedMemory scores_;
  PinnedMemory tops_;
  PinnedMemory embeddings_;  // a row for each sequence of a step; none where embeddings are not offered
  std::vector<DecodeGraphs> decodes_;  // ascending width
  kernels::DraftSource source_;
  int layer_drafts_ = -1;         // most draft tokens that the draft layer makes; -1: there is none
  std::uint32_t acceptance_ = 0;  // AcceptDrafts::acceptance
  std::uint64_t launched_ = 0;
  PinnedMemory gate_masks_;
  PinnedMemory held_;     // HeldGates
  PackedStep held_step_;  // the last one that was held
  CudaEvent copied_;      // gates and masks of the held step are in device memory
  CudaEvent drawn_;       // the last held step needs them no more
  std::unique_ptr<CudaCopyStream> copies_;
};

}  // namespace troupe::model
