#pragma once
// The steps of a GPU: their memory, their graphs, their launch, and access to their results.
//
// The first kernel of a step reads the piece of pinned memory that the host has written; the last one writes
// the outcome. The host waits for nothing in between. Decode steps, in which every sequence runs one token,
// are graphs, one for each size; all other steps are launched kernel by kernel.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/cuda.h"
#include "gpu/cuda_graph.h"
#include "gpu/pinned.h"
#include "ipc/wire.h"
#include "kernels/step_inputs.h"
#include "model/cuda/step_packer.h"
#include "model/decoder.h"

namespace troupe::model {

/// One thread. Device and decoder outlive it. All functions throw CudaError.
class CudaSteps {
 public:
  /// Allocates StepMemory and pinned host memory; the graphs come later. unavailable if there is too little.
  static Result<CudaSteps> make(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity);

  /// Runs each size of step once, with padding rows, so that every kernel is loaded and the working memory
  /// has its final size. Freezes the working memory.
  void warm_up();
  /// Captures the decode steps as graphs. After warm_up().
  void capture();

  const SequenceMemory& sequence_memory() const { return memory_.sequences; }
  /// Rows that are scored at a time: there are as many rows of logits.
  int score_group() const { return capacity_.max_slots; }

  const kernels::PieceLayout& layout() const { return layout_; }
  /// The piece to pack the next step into. At most capacity.max_steps_in_flight steps may be in flight.
  std::span<std::byte> next_piece() const { return piece(launched_); }
  /// Starts the step that was packed into next_piece() and returns its number. finished() and the other
  /// accessors accept the number until max_steps_in_flight more steps were launched.
  std::uint64_t launch(const PackedStep& step);

  bool finished(std::uint64_t step) const;
  /// Times on the GPU's own clock.
  const kernels::StepOutcome& outcome(std::uint64_t step) const;
  std::span<const kernels::Sampled> sampled(std::uint64_t step) const;
  /// Filled in only for rows that want logprobs.
  std::span<const kernels::SampleResult> results(std::uint64_t step) const;
  /// Complete when an event behind the step has passed.
  std::span<const kernels::SampleResult> scores(std::uint64_t step) const;

  /// Steps launched so far: the number of the last one.
  std::uint64_t launched() const { return launched_; }
  std::size_t graphs() const { return graphs_.size(); }

 private:
  CudaSteps(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity, Buffer<Cuda> buffer);

  // The piece of the step before which `launched` were launched.
  std::span<std::byte> piece(std::uint64_t launched) const;
  int pieces() const { return capacity_.max_steps_in_flight + 1; }
  // Launches the kernels of a step of this size; the piece says which rows are padding.
  void run(const PackedStep& step, bool picks);
  void run_scores(int count);
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
  std::vector<int> buckets_;
  std::vector<CudaGraph> graphs_;  // beside buckets_
  std::uint64_t launched_ = 0;
};

}  // namespace troupe::model
