#pragma once
// The network: takes a batch of tokens, gives a sampled token or a log-probability for each row that asks.
//
// It is written once for every device: forward_pass.inl is the forward pass as a paper would print it. Each
// line is an op that every device implements in kernels/.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "gpu/buffer.h"
#include "kernels/batch.h"
#include "kernels/copy_blocks.h"
#include "kernels/moe.h"
#include "kernels/sample.h"
#include "kernels/top_logprobs.h"
#include "model/checkpoint/spec.h"
#include "model/draft_layer.h"
#include "model/ranks/collective.h"
#include "model/read_rows.h"
#include "model/stage.h"
#include "model/step_batch.h"
#include "model/weights.h"

namespace troupe::model {

/// Upper limits of one step. Memory for them is allocated once.
struct DecoderLimits {
  int rows = 0;       ///< tokens of a step
  int sequences = 0;  ///< sequences of a step; memory holds this many rows of logits at once, and
  int drafts = 0;     ///< so many more, for the tokens behind draft tokens
  int positions = 0;  ///< tokens of one sequence, prompt and output together
  int kv_blocks = 0;
  kernels::KvFormat kv_format = kernels::KvFormat::plain;
  bool kv_ids = false;  ///< KvCache::ids
  bool staged = true;   ///< true: step() and logits() may be called; false: only forward(), sample(), score()
  int tops = 0;         ///< StepBatch::tops of a step
};

/// Rows of a step whose output of the last layer is read; device memory.
struct DeviceReads {
  const std::int32_t* rows = nullptr;                ///< (count) batch rows, rising; all of text, no padding
  const kernels::SequenceRows* sequences = nullptr;  ///< (count) rows[i] alone, as row i
  int count = 0;                                     ///< at most limits.sequences
};

/// A step whose inputs are already in device memory.
struct DeviceStep {
  kernels::Batch batch{};
  const TokenId* tokens = nullptr;           ///< (batch.rows)
  const std::int32_t* positions = nullptr;   ///< (batch.rows, axes)
  int axes = 1;                              ///< 3: time, row and column
  const std::uint8_t* kinds = nullptr;       ///< (batch.rows); null: all are text
  std::span<const EmbeddedRows> embedded{};  ///< host memory
  /// The only rows that are sampled or scored after the step; none given: any may be. Of the others the last
  /// layer computes no more than keys and values.
  std::optional<DeviceReads> reads{};
};

/// Rows of a DeviceStep that sample, and their parameters; device memory.
struct DeviceSamples {
  const std::int32_t* picks = nullptr;       ///< (count) batch rows that sample; null: rows 0 … count - 1
  const kernels::SampleRow* rows = nullptr;  ///< (count); logits_row is an index into `picks`
  int count = 0;                             ///< at most limits.sequences
  const kernels::TopRow* tops = nullptr;     ///< (top_rows) of the rows, those that want more top entries
  int top_rows = 0;
};

/// The same for prompt tokens whose log-probability is wanted.
struct DeviceScores {
  const std::int32_t* picks = nullptr;
  const kernels::ScoreRow* rows = nullptr;
  int count = 0;
  const kernels::TopRow* tops = nullptr;
  int top_rows = 0;
};

/// Working memory of a step. Columns are padded; the padding is zero and no op writes anything else there.
struct Activations {
  float* residual = nullptr;  ///< (rows, hidden): the residual stream
  float* partial =
      nullptr;  ///< (rows, hidden): a rank's part of a sum over the ranks; null where one rank runs alone
  void* x = nullptr;             ///< (rows, hidden) of dtype: the normalised input of attention or of the MLP
  void* q = nullptr;             ///< (rows, heads · head_dim) of dtype
  void* attended = nullptr;      ///< (rows, heads · head_dim) of dtype
  void* mlp = nullptr;           ///< (rows, intermediate) of dtype; also of slices of shared experts
  void* kv = nullptr;            ///< QkvRopeKvWrite::unquantised
  float* rope = nullptr;         ///< (rows, head_dim / 2, 2)
  float* gathered = nullptr;     ///< (sequences, hidden): the residual stream of rows that end a layer alone
  void* picked = nullptr;        ///< (sequences, hidden) of dtype: normalised rows whose logits are wanted
  float* logits = nullptr;       ///< (sequences, vocab)
  float* held_logits = nullptr;  ///< (sequences, tokens held); null where one rank runs alone
  kernels::SampleResult* results = nullptr;  ///< (sequences)
  kernels::TopLogprob* tops = nullptr;       ///< (limits.tops)
  float* inverse_frequencies = nullptr;      ///< (head_dim / 2), constant
  std::uint8_t* rope_axes =
      nullptr;  ///< (head_dim / 2), constant: by what a pair turns in a vision-language model
  // Of the draft layer; null without one.
  void* hidden = nullptr;         ///< (rows, hidden) of dtype: the step's hidden rows, which the layer reads
  void* kept_hidden = nullptr;    ///< (sequences, hidden) of dtype: a slot's last hidden row
  void* drafted = nullptr;        ///< (sequences, hidden) of dtype: the layer's outputs as hidden rows
  void* joined = nullptr;         ///< (rows, 2 · hidden) of dtype: what the layer projects
  float* draft_logits = nullptr;  ///< (sequences, vocab); with limits.staged the same as `logits`
  kernels::SampleResult* draft_results = nullptr;  ///< (sequences)
  std::size_t bytes = 0;  ///< all of the above; correct even if they were laid out in an empty View

  /// `spec`: of the model, or of a rank's part of it.
  static Activations make(const ModelSpec& spec, DType dtype, const DecoderLimits& limits, View memory);
};

/// Everything the layers of one step read and write; device memory.
struct ForwardStep {
  const WeightLayout& weights;
  const Activations& memory;
  kernels::KvCache kv{};
  kernels::Batch batch{};
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  int axes = 1;
  const std::uint8_t* kinds = nullptr;
  std::span<const EmbeddedRows> embedded{};
  std::optional<DeviceReads> reads{};  ///< the other rows of the residual stream are not finished
  kernels::LargestInputs largest{};    ///< (layers, experts)
};

template <class D, class R>
struct ForwardPass;
template <class D, class R>
struct DraftPass;
struct DraftBatch;

/// For one thread. The device must outlive it. step() allocates nothing after the largest batch has run once.
template <Device D>
class Decoder {
 public:
  /// `kv`: zeroed memory for limits.kv_blocks blocks that outlives the decoder; null: the decoder allocates
  /// its own. `ranks`: where `spec` is of a rank's part, it and its ranks; outlives the decoder, which must
  /// not be asked for anything but a new step once it is abandoned.
  static Result<std::unique_ptr<Decoder>> make(D& device, const ModelSpec& spec, const WeightFormats& formats,
                                               Weights<D> weights, const DecoderLimits& limits,
                                               void* kv = nullptr, Collective<D>* ranks = nullptr);

  /// Runs the batch, which must be within the limits and name only blocks below limits.kv_blocks.
  /// samples[i] receives the result of batch.samples[i], scores[i] that of batch.scores[i], `tops` the
  /// batch's tops; sizes must match.
  void step(const StepBatch& batch, std::span<kernels::SampleResult> samples,
            std::span<kernels::SampleResult> scores, std::span<kernels::TopLogprob> tops = {}) {
    begin(batch, scores, tops);
    finish(batch, samples);
  }
  /// The two parts of step(): everything up to the logits, and the sampling. Between them the masks of
  /// batch.samples may be set; of the decoder's functions only copy_blocks() may be called.
  void begin(const StepBatch& batch, std::span<kernels::SampleResult> scores,
             std::span<kernels::TopLogprob> tops = {});
  void finish(const StepBatch& batch, std::span<kernels::SampleResult> samples);

  /// After begin(), before finish(): the hidden rows of batch.embeds, normalised as for the logits,
  /// (batch.embeds.size(), hidden).
  void embeddings(const StepBatch& batch, std::span<float> out);
  /// The same in two parts. After sample(), before draft(): gives the device the copies of the hidden rows of
  /// `samples`, which rise, to host memory, (samples.size(), hidden_bytes()), and does not wait for them.
  void copy_embeddings(std::span<const std::int32_t> samples, std::byte* to);
  /// Reads rows that have been copied so; `out`: (rows, hidden).
  void read_embeddings(const std::byte* rows, std::span<float> out) const;

  /// Runs the batch and writes the raw logits of batch.sample_rows to `out`, (sample_rows.size(), vocab), to
  /// compare them with a reference. Samples nothing.
  void logits(const StepBatch& batch, std::span<float> out);

  /// The three parts of a step. They only give work to the device and do not wait for it, so a CUDA graph may
  /// be captured from them. sample() and score() leave their results in results(); each overwrites the last.
  void forward(const DeviceStep& step);
  void sample(const DeviceSamples& samples);
  /// The end of sample() alone: rows that it passed over (logits_row -1) sample from the logits that it left.
  void draw(const kernels::SampleRow* rows, int count);
  void score(const DeviceScores& scores);
  kernels::SampleResult* results() const { return memory_.results; }
  /// Where sample() and score() write the entries that their `tops` ask for; limits.tops elements.
  const kernels::TopLogprob* tops() const { return memory_.tops; }

  /// After a step, before the next: runs the draft layer on the step's rows as `drafts` says, at most one of
  /// a sequence, and samples a draft for each that has a `next`, in their order; sizes must match. Keeps the
  /// last hidden row of every sequence in `drafts`. batch.slots say where, below limits.sequences. `logits`,
  /// if not empty, gets the raw logits of each result, (results.size(), vocab).
  void draft_rows(const StepBatch& batch, std::span<const DraftRows> drafts,
                  std::span<kernels::SampleResult> results, std::span<float> logits = {});
  /// After draft_rows() or draft_again(), whose results may each be named once: the layer runs again on its
  /// own output and the drafted token. The next draft_rows() overwrites the keys and values that this
  /// writes.
  void draft_again(std::span<const DraftAgain> drafts, std::span<kernels::SampleResult> results,
                   std::span<float> logits = {});
  /// The two as parts of a step whose inputs are in device memory: after forward() and whatever reads its
  /// residual stream, the hidden rows of the step's rows are there. They leave their results in
  /// draft_results(), each overwriting the last, and nothing else that sample() leaves, so that rows which
  /// wait for a mask may still be drawn; a staged decoder's logits they overwrite.
  void draft(const DeviceDrafts& drafts);
  void draft_again(const DeviceDrafts& drafts);
  const kernels::SampleResult* draft_results() const { return memory_.draft_results; }
  /// The hidden row that draft_rows() has kept for a slot, as hidden_bytes() bytes, to give it to another
  /// one.
  void save_hidden(std::uint32_t slot, std::span<std::byte> to);
  void load_hidden(std::uint32_t slot, std::span<const std::byte> from);
  std::size_t hidden_bytes() const {
    return static_cast<std::size_t>(kernels::padded(spec_.hidden)) * size_of(dtype_);
  }
  /// For checkpoints that were trained otherwise; before the first step.
  void set_draft_norms(const DraftNorms& norms) { draft_norms_ = norms; }

  /// Every step from now on raises these, (layers, experts), in all layers that are mixtures. On the Cpu
  /// alone.
  void observe(const kernels::LargestInputs& largest) { largest_ = largest; }

  void copy_blocks(std::span<const kernels::BlockPair> pairs);
  const kernels::KvCache& kv() const { return kv_; }
  const VisionWeights& vision_weights() const { return weights_.layout().vision; }

  const ModelSpec& spec() const { return spec_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }
  /// As Weights::note().
  std::string load_note() const { return weights_.note(); }
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

  ForwardPass<D, Collective<D>> pass() { return {device_, spec_, dtype_, ranks_, token_ranges_}; }
  DeviceStep stage_batch(const StepBatch& batch);
  const kernels::SampleRow* stage_samples(std::span<const kernels::SampleRow> samples);
  DraftPass<D, Collective<D>> draft_pass() { return {pass()}; }
  void keep_hidden(int rows);
  DeviceDrafts stage_drafts();
  void run_drafts(const DeviceDrafts& staged, const void* hidden, std::span<kernels::SampleResult> results,
                  std::span<float> logits);
  void run_layer(const DeviceDrafts& drafts, const void* hidden);
  void end_run(const DeviceDrafts& drafts);
  void* block_tails() const { return static_cast<std::byte*>(kv_.data) + kv_.tail_offset(); }
  void copy_hidden(void* out, std::size_t out_stride, const void* rows, std::size_t row_stride,
                   const RowCopies& copies);
  void logits_of(const std::int32_t* picks, int count);
  void find_tops(const kernels::TopRow* rows, int count);
  void fetch(std::span<kernels::SampleResult> results);

  D& device_;
  const ModelSpec spec_;
  const DType dtype_;
  const DecoderLimits limits_;
  Weights<D> weights_;
  Collective<D>* ranks_ = nullptr;  ///< null: alone
  std::vector<int> token_ranges_;   ///< with ranks_
  Buffer<D> kv_memory_;
  Buffer<D> arena_;
  Activations memory_;
  kernels::KvCache kv_;
  kernels::LargestInputs largest_{};
  Stage<D> stage_;

  // Host side of the current step.
  std::vector<kernels::KvSlot> slots_;
  std::vector<std::int32_t> positions_;
  std::vector<kernels::SequenceRows> sequences_;
  ReadRows reads_;
  std::vector<kernels::SampleRow> samples_;
  std::vector<kernels::ScoreRow> scores_;
  std::vector<kernels::TopRow> tops_;
  std::vector<std::byte> embedded_rows_;
  DraftNorms draft_norms_;
  std::shared_ptr<DraftBatch> draft_batch_;  ///< null without a draft layer
};

}  // namespace troupe::model
