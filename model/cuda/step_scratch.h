#pragma once
// Working memory that the ops of a GPU's steps ask for (Cuda::scratch), from the model's shape alone: the
// forward pass runs with a device that only asks each op for its demand (kernels/cuda/scratch.h).
#include <cstddef>
#include <optional>

#include "kernels/cuda/gpu_traits.h"
#include "model/checkpoint/spec.h"
#include "model/decoder.h"
#include "model/weight_formats.h"

namespace troupe::model {

/// What the demand of a step depends on. A plan's rows that a GPU pads count with their padding.
struct StepSize {
  int rows = 0;
  int sequences = 0;           ///< at most rows
  int samples = 0;             ///< at most sequences, and limits.drafts more
  int scores = 0;              ///< prompt tokens that are scored, at most rows
  int most_tokens = 0;         ///< kernels::Batch::most_tokens
  int draft_rows = 0;          ///< that the draft layer runs, of as many sequences
  int drafts = 0;              ///< sequences that draft, at most `sequences`
  std::optional<int> reads{};  ///< DeviceStep::reads
};

class StepScratch {
 public:
  /// `spec`: of the model, or of a rank's part of it. Steps have at most limits.rows rows and
  /// limits.sequences sequences; so many rows are scored at a time. With `verified` above 1 there are steps
  /// whose batch says that no sequence has more than 2 … `verified` tokens: a last token and its drafts.
  StepScratch(const ModelSpec& spec, const WeightFormats& formats, const kernels::cuda::GpuTraits& gpu,
              const DecoderLimits& limits, int verified = 0);

  /// The largest demand of the step's ops, in bytes.
  std::size_t of(const StepSize& step) const;
  /// The largest demand of all steps within the limits.
  std::size_t most() const;

 private:
  std::size_t of_layers(int rows, int sequences, int most_tokens = 0, std::optional<int> reads = {}) const;
  std::size_t of_draft_layer(int rows, int sequences, int most_tokens = 0) const;
  /// Of rows whose logits are computed and then sampled, or scored.
  std::size_t of_samples(int rows) const;
  std::size_t of_scores(int rows) const;

  ModelSpec spec_;  ///< with one layer of each kind
  WeightFormats formats_;
  kernels::cuda::GpuTraits gpu_;
  DecoderLimits limits_;
  int verified_;
  WeightLayout weights_;
  Activations memory_;
  kernels::KvCache kv_;
};

}  // namespace troupe::model
