#pragma once
// The network: a batch of tokens in, a token or a log-probability per asked-for row out.
//
// Written once for every device: decoder.inl is the forward pass as a paper would print it, each line an op
// that the device implements in kernels/.
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "gpu/buffer.h"
#include "kernels/batch.h"
#include "kernels/copy_blocks.h"
#include "kernels/sample.h"
#include "model/checkpoint/spec.h"
#include "model/stage.h"
#include "model/step_batch.h"
#include "model/weights.h"

namespace troupe::model {

/// The most that one step may bring; memory is taken for it once.
struct DecoderLimits {
  int rows = 0;       ///< tokens of a step
  int sequences = 0;  ///< sequences of a step; as many logits rows are held at once
  int positions = 0;  ///< of one sequence
  int kv_blocks = 0;
  bool staged = true;  ///< whether step() and logits() will be called; false: only the DeviceStep ones
};

/// A step whose inputs lie in device memory already.
struct DeviceStep {
  kernels::Batch batch{};
  const TokenId* tokens = nullptr;          ///< (batch.rows)
  const std::int32_t* positions = nullptr;  ///< (batch.rows)
};

/// Rows of it that sample, and how; device memory.
struct DeviceSamples {
  const std::int32_t* picks = nullptr;       ///< (count) rows of the batch; null: row i is the i-th
  const kernels::SampleRow* rows = nullptr;  ///< (count); logits_row counts within the picks
  int count = 0;                             ///< at most limits.sequences
};

/// Likewise of prompt tokens whose log-probability is wanted.
struct DeviceScores {
  const std::int32_t* picks = nullptr;
  const kernels::ScoreRow* rows = nullptr;
  int count = 0;
};

/// Working memory of a step. Rows of padded columns whose padding is zero and stays so.
struct Activations {
  float* residual = nullptr;  ///< (rows, hidden): the stream that every block adds to
  void* x = nullptr;          ///< (rows, hidden) of dtype: normed input of a block
  void* q = nullptr;          ///< (rows, heads · head_dim) of dtype
  void* attended = nullptr;   ///< (rows, heads · head_dim) of dtype
  void* mlp = nullptr;        ///< (rows, intermediate) of dtype
  float* rope = nullptr;      ///< (rows, head_dim / 2, 2)
  void* picked = nullptr;     ///< (sequences, hidden) of dtype: rows whose logits are wanted, normed
  float* logits = nullptr;    ///< (sequences, vocab)
  kernels::SampleResult* results = nullptr;  ///< (sequences)
  float* inverse_frequencies = nullptr;      ///< (head_dim / 2), constant
  std::size_t bytes = 0;

  static Activations make(const ModelSpec& spec, DType dtype, const DecoderLimits& limits, View memory);
};

/// All that the layers of one step read and write; device memory.
struct ForwardStep {
  const ModelSpec& spec;
  const WeightLayout& weights;
  const Activations& memory;
  kernels::KvCache kv{};
  kernels::Batch batch{};
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
};

/// A device that can run all layers of a step as one kernel offers run_layers; it answers false for a step
/// it cannot take, which then runs op by op.
template <class D>
concept RunsLayers = requires(D& device, const ForwardStep& step) {
  { run_layers(device, step) } -> std::same_as<bool>;
};

/// One thread. The device outlives it. step() allocates nothing once the largest batch has passed.
template <Device D>
class Decoder {
 public:
  /// `kv`: zeroed memory for limits.kv_blocks that outlives the decoder; null: the decoder takes its own.
  static Result<std::unique_ptr<Decoder>> make(D& device, const ModelSpec& spec, DType dtype,
                                               Weights<D> weights, const DecoderLimits& limits,
                                               void* kv = nullptr);

  /// Runs the batch, which is within the limits and names only blocks below limits.kv_blocks.
  /// samples[i] answers batch.samples[i], scores[i] batch.scores[i]; they are as long.
  void step(const StepBatch& batch, std::span<kernels::SampleResult> samples,
            std::span<kernels::SampleResult> scores);

  /// Runs the batch and gives the raw logits of batch.sample_rows, vocab of them for each: for comparisons
  /// with a reference. Samples nothing.
  void logits(const StepBatch& batch, std::span<float> out);

  /// The three parts of a step, apart: a device with a queue of its own is only given work here, and a graph
  /// may be captured from it. Results of sample() and score() lie in results() until the next of them runs.
  void forward(const DeviceStep& step);
  void sample(const DeviceSamples& samples);
  void score(const DeviceScores& scores);
  const kernels::SampleResult* results() const { return memory_.results; }

  void copy_blocks(std::span<const kernels::BlockPair> pairs);

  const ModelSpec& spec() const { return spec_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }
  std::size_t kv_bytes() const { return kv_memory_.bytes(); }
  /// Written by every step.
  View activations() const { return arena_.view(); }
  std::size_t arena_bytes() const { return arena_.bytes() + stage_.bytes(); }

 private:
  Decoder(D& device, const ModelSpec& spec, DType dtype, Weights<D> weights, const DecoderLimits& limits,
          Stage<D> stage)
      : device_(device),
        spec_(spec),
        dtype_(dtype),
        limits_(limits),
        weights_(std::move(weights)),
        stage_(std::move(stage)) {}

  void run(const ForwardStep& step);
  DeviceStep stage_batch(const StepBatch& batch);
  const kernels::SampleRow* stage_samples(const StepBatch& batch);
  void logits_of(const std::int32_t* picks, int count);
  void fetch(std::span<kernels::SampleResult> results);

  D& device_;
  const ModelSpec spec_;
  const DType dtype_;
  const DecoderLimits limits_;
  Weights<D> weights_;
  Buffer<D> kv_memory_;
  Buffer<D> arena_;
  Activations memory_;
  kernels::KvCache kv_;
  Stage<D> stage_;

  // Host side of the step at hand.
  std::vector<kernels::KvSlot> slots_;
  std::vector<std::int32_t> positions_;
  std::vector<kernels::SequenceRows> sequences_;
  std::vector<kernels::SampleRow> samples_;
  std::vector<kernels::ScoreRow> scores_;
};

}  // namespace troupe::model
