#pragma once
// The steps of a GPU: their memory, their graphs, and the way in and out of them.
//
// A step runs from the piece of pinned memory that the host has written to the outcome that the last kernel
// writes, and the host waits for nothing in between. Decode steps, in which every sequence runs one token,
// are graphs, one for each size; everything else is launched kernel by kernel.
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
  /// Takes all memory (StepMemory's and some of the host's), but for the graphs'. unavailable when there is
  /// too little.
  static Result<CudaSteps> make(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity);

  /// Runs each size of step once, with padding for rows, so that every kernel is loaded and the working
  /// memory has its final size, which it keeps from then on.
  void warm_up();
  /// Records the decode steps. After warm_up().
  void capture();

  const SequenceMemory& sequence_memory() const { return memory_.sequences; }
  /// Scored rows are numbered within groups of so many.
  int score_group() const { return capacity_.max_slots; }

  const kernels::PieceLayout& layout() const { return layout_; }
  /// Where the next step is to be packed. At most capacity.max_steps_in_flight steps may be out.
  std::span<std::byte> next_piece() const { return piece(launched_); }
  /// Starts the step that was packed there. Gives its number, which finished() and the like take until as
  /// many more steps were launched as may be out.
  std::uint64_t launch(const PackedStep& step);

  bool finished(std::uint64_t step) const;
  /// Times on the GPU's own clock.
  const kernels::StepOutcome& outcome(std::uint64_t step) const;
  std::span<const kernels::Sampled> sampled(std::uint64_t step) const;
  /// Only those of rows that want logprobs are filled in.
  std::span<const kernels::SampleResult> results(std::uint64_t step) const;
  /// Complete when an event behind the step has passed.
  std::span<const kernels::SampleResult> scores(std::uint64_t step) const;

  /// Steps launched so far: the number of the last one.
  std::uint64_t launched() const { return launched_; }
  std::size_t graphs() const { return graphs_.size(); }

 private:
  CudaSteps(Cuda& device, Decoder<Cuda>& decoder, const wire::Capacity& capacity, Buffer<Cuda> buffer);

  // That a step is packed in when so many were launched before.
  std::span<std::byte> piece(std::uint64_t launched) const;
  int pieces() const { return capacity_.max_steps_in_flight + 1; }
  // The kernels of a step of this size; `step` says how much of it is real.
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
