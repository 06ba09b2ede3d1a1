#pragma once
// Decoder<D>: model/forward_pass.inl with the memory of a device.
#include <algorithm>
#include <utility>

#include "kernels/rope_table.h"
#include "model/decoder.h"
#include "model/draft_layer.inl"
#include "model/forward_pass.inl"
#include "model/plan_check.h"
#include "model/ranks/part.h"

namespace troupe::model {

template <Device D>
void Decoder<D>::forward(const DeviceStep& step) {
  // A draft layer reads every row, and statistics are of every row.
  const bool all = spec_.draft_layers > 0 || largest_.wanted();
  pass().layers({.weights = weights_.layout(),
                 .memory = memory_,
                 .kv = kv_,
                 .batch = step.batch,
                 .tokens = step.tokens,
                 .positions = step.positions,
                 .axes = step.axes,
                 .kinds = step.kinds,
                 .embedded = step.embedded,
                 .reads = all ? std::nullopt : step.reads,
                 .largest = largest_});
  if (spec_.draft_layers > 0) keep_hidden(step.batch.rows);
}

template <Device D>
void Decoder<D>::sample(const DeviceSamples& samples) {
  logits_of(samples.picks, samples.count);
  find_tops(samples.tops, samples.top_rows);
  draw(samples.rows, samples.count);
}

template <Device D>
void Decoder<D>::find_tops(const kernels::TopRow* rows, int count) {
  if (count == 0) return;
  kernels::run(device_, kernels::TopLogprobs{.top = memory_.tops,
                                             .rows = rows,
                                             .logits = memory_.logits,
                                             .count = count,
                                             .vocab = spec_.vocab,
                                             .stride = kernels::padded(spec_.vocab)});
}

template <Device D>
void Decoder<D>::draw(const kernels::SampleRow* rows, int count) {
  kernels::run(device_, kernels::Sample{.results = memory_.results,
                                        .rows = rows,
                                        .logits = memory_.logits,
                                        .count = count,
                                        .vocab = spec_.vocab,
                                        .stride = kernels::padded(spec_.vocab)});
}

template <Device D>
void Decoder<D>::score(const DeviceScores& scores) {
  logits_of(scores.picks, scores.count);
  kernels::run(device_, kernels::Score{.results = memory_.results,
                                       .rows = scores.rows,
                                       .logits = memory_.logits,
                                       .count = scores.count,
                                       .vocab = spec_.vocab,
                                       .stride = kernels::padded(spec_.vocab)});
  find_tops(scores.tops, scores.top_rows);
}

template <Device D>
void Decoder<D>::begin(const StepBatch& batch, std::span<kernels::SampleResult> scores,
                       std::span<kernels::TopLogprob> tops) {
  TROUPE_CHECK(scores.size() == batch.scores.size());
  TROUPE_CHECK(tops.size() == static_cast<std::size_t>(batch.tops) && batch.tops <= limits_.tops);
  if (batch.rows() == 0) return;
  stage_.reset();
  forward(stage_batch(batch));

  // Prompt tokens are scored in groups, because a prompt may have more rows than memory_.logits holds.
  const auto group = static_cast<std::size_t>(limits_.sequences);
  std::span<const kernels::TopRow> top_rows = batch.score_tops;
  for (std::size_t first = 0; first < scores.size(); first += group) {
    const std::size_t count = std::min(group, scores.size() - first);
    const auto begin = batch.scores.begin() + static_cast<std::ptrdiff_t>(first);
    scores_.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i) scores_[i].logits_row = static_cast<std::int32_t>(i);
    const auto group_tops = take_below(top_rows, static_cast<std::int32_t>(first + count));
    tops_.assign(group_tops.begin(), group_tops.end());
    for (kernels::TopRow& row : tops_) row.logits_row -= static_cast<std::int32_t>(first);
    score({.picks = stage_.put(batch.score_rows.data() + first, count),
           .rows = stage_.put(scores_.data(), count),
           .count = static_cast<int>(count),
           .tops = stage_.put(tops_.data(), tops_.size()),
           .top_rows = static_cast<int>(tops_.size())});
    fetch(scores.subspan(first, count));
  }
  const std::size_t count = batch.samples.size();
  if (count > 0) logits_of(stage_.put(batch.sample_rows.data(), count), static_cast<int>(count));
  find_tops(stage_.put(batch.sample_tops.data(), batch.sample_tops.size()),
            static_cast<int>(batch.sample_tops.size()));
  if (tops.empty()) return;
  device_.download(tops.data(), memory_.tops, tops.size_bytes());
  device_.sync();
}

template <Device D>
void Decoder<D>::finish(const StepBatch& batch, std::span<kernels::SampleResult> samples) {
  TROUPE_CHECK(samples.size() == batch.samples.size());
  if (samples.empty()) return;
  draw(stage_samples(batch.samples), static_cast<int>(samples.size()));
  fetch(samples);
}

template <Device D>
void Decoder<D>::embeddings(const StepBatch& batch, std::span<float> out) {
  TROUPE_CHECK(out.size() == batch.embeds.size() * static_cast<std::size_t>(spec_.hidden));
  embedded_rows_.resize(batch.embeds.size() * hidden_bytes());
  copy_embeddings(batch.embeds, embedded_rows_.data());
  device_.sync();
  read_embeddings(embedded_rows_.data(), out);
}

template <Device D>
void Decoder<D>::copy_embeddings(std::span<const std::int32_t> samples, std::byte* to) {
  const auto* const picked = static_cast<const std::byte*>(memory_.picked);
  for (std::size_t first = 0, count = 1; first < samples.size(); first += count, count = 1) {
    const std::int32_t row = samples[first];
    while (first + count < samples.size() && samples[first + count] == row + static_cast<std::int32_t>(count))
      ++count;
    device_.download(to + first * hidden_bytes(), picked + static_cast<std::size_t>(row) * hidden_bytes(),
                     count * hidden_bytes());
  }
}

template <Device D>
void Decoder<D>::read_embeddings(const std::byte* rows, std::span<float> out) const {
  const auto hidden = static_cast<std::size_t>(spec_.hidden);
  for (std::size_t first = 0; first < out.size(); first += hidden, rows += hidden_bytes()) {
    for (std::size_t c = 0; c < hidden; ++c) out[first + c] = load_element(rows, dtype_, c);
  }
}

template <Device D>
void Decoder<D>::logits(const StepBatch& batch, std::span<float> out) {
  const auto vocab = static_cast<std::size_t>(spec_.vocab);
  TROUPE_CHECK(out.size() == batch.sample_rows.size() * vocab);
  if (batch.rows() == 0) return;
  stage_.reset();
  forward(stage_batch(batch));
  const std::span<const std::int32_t> rows(batch.sample_rows);
  const auto group = static_cast<std::size_t>(limits_.sequences);
  for (std::size_t first = 0; first < rows.size(); first += group) {
    const std::size_t count = std::min(group, rows.size() - first);
    logits_of(stage_.put(rows.data() + first, count), static_cast<int>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const float* row = memory_.logits + i * static_cast<std::size_t>(kernels::padded(spec_.vocab));
      device_.download(out.data() + (first + i) * vocab, row, vocab * sizeof(float));
    }
    device_.sync();
  }
}

template <Device D>
void Decoder<D>::logits_of(const std::int32_t* picks, int count) {
  pass().logits(weights_.layout(), memory_, picks, count);
}

template <Device D>
void Decoder<D>::fetch(std::span<kernels::SampleResult> results) {
  device_.download(results.data(), memory_.results, results.size_bytes());
  device_.sync();
}

template <Device D>
DeviceStep Decoder<D>::stage_batch(const StepBatch& batch) {
  const auto rows = static_cast<std::size_t>(batch.rows());
  const auto count = batch.sequences.size();
  TROUPE_CHECK(batch.rows() <= limits_.rows && count <= static_cast<std::size_t>(limits_.sequences));
  slots_.resize(rows);
  positions_.resize(rows);
  kernels::describe_rows(batch.sequences.data(), static_cast<int>(count), slots_.data(), positions_.data());
  sequences_ = batch.sequences;
  for (kernels::SequenceRows& sequence : sequences_) {
    const int blocks =
        (sequence.position + sequence.tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
    sequence.blocks = stage_.put(sequence.blocks, static_cast<std::size_t>(blocks));
  }
  std::optional<DeviceReads> reads;
  if (reads_.find(batch, sequences_, static_cast<std::size_t>(limits_.sequences))) {
    const auto read = static_cast<std::size_t>(reads_.count());
    reads = DeviceReads{.rows = stage_.put(reads_.rows().data(), read),
                        .sequences = stage_.put(reads_.sequences().data(), read),
                        .count = reads_.count()};
  }
  const bool spatial = !batch.positions.empty();
  TROUPE_CHECK(!spatial || (spec_.vision && batch.positions.size() == rows));
  static_assert(sizeof(TokenPosition) == 3 * sizeof(std::int32_t));
  const auto* const positions =
      spatial ? &batch.positions.data()->time : static_cast<const std::int32_t*>(positions_.data());
  return {.batch = {.sequences = stage_.put(sequences_.data(), count),
                    .slots = stage_.put(slots_.data(), rows),
                    .count = static_cast<std::int32_t>(count),
                    .rows = batch.rows()},
          .tokens = stage_.put(batch.tokens.data(), rows),
          .positions = stage_.put(positions, spatial ? 3 * rows : rows),
          .axes = spatial ? 3 : 1,
          .kinds = batch.kinds.empty() ? nullptr : stage_.put(batch.kinds.data(), rows),
          .embedded = batch.embedded,
          .reads = reads};
}

template <Device D>
const kernels::SampleRow* Decoder<D>::stage_samples(std::span<const kernels::SampleRow> samples) {
  samples_.assign(samples.begin(), samples.end());
  for (kernels::SampleRow& row : samples_) {
    const bool penalised =
        row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
    row.tokens = penalised ? stage_.put(row.tokens, static_cast<std::size_t>(row.known_tokens)) : nullptr;
    row.banned = stage_.put(row.banned, static_cast<std::size_t>(row.banned_count));
    row.bias = stage_.put(row.bias, static_cast<std::size_t>(row.bias_count));
    row.mask = stage_.put(row.mask, row.mask == nullptr ? 0 : kernels::mask_words(spec_.vocab));
  }
  return stage_.put(samples_.data(), samples_.size());
}

template <Device D>
void Decoder<D>::copy_blocks(std::span<const kernels::BlockPair> pairs) {
  kernels::run(device_, kernels::CopyBlocks{
                            .kv = kv_, .pairs = pairs.data(), .count = static_cast<int>(pairs.size())});
}

// Bytes that one step may put into its Stage between two resets, at most.
inline std::size_t stage_bytes(const DecoderLimits& limits, const ModelSpec& spec) {
  const bool vision = spec.vision.has_value(), drafts = spec.draft_layers > 0;
  // The draft layer may run a row more of every sequence than the step has.
  const auto rows = static_cast<std::size_t>(limits.rows + (drafts ? limits.sequences : 0));
  const auto sequences = static_cast<std::size_t>(limits.sequences);
  const auto positions = static_cast<std::size_t>(limits.positions);
  const std::size_t per_row = sizeof(TokenId) + sizeof(std::int32_t) + sizeof(kernels::KvSlot) +
                              sizeof(std::int32_t) + sizeof(kernels::ScoreRow) + sizeof(kernels::TopRow) +
                              (vision ? sizeof(TokenPosition) + sizeof(std::uint8_t) : 0);
  const std::size_t blocks = sizeof(kernels::SequenceRows) + (positions / kernels::kBlockTokens + 1) * sizeof(BlockId);
  const std::size_t per_sequence = (drafts ? 2 : 1) * blocks + sizeof(kernels::SampleRow) +
                                   sizeof(kernels::TopRow) + sizeof(kernels::SequenceRows) +
                                   (drafts ? 6 : 2) * sizeof(std::int32_t) +
                                   positions * sizeof(TokenId) + kMaxSamplingBytes +
                                   kernels::mask_words(spec.vocab) * sizeof(std::uint32_t);
  // Arrays are rounded up to the alignment: 18 per step, six per sequence, three per group of scored rows.
  const std::size_t pieces = 18 + 6 * sequences + 3 * (rows / std::max<std::size_t>(sequences, 1) + 1);
  return rows * per_row + sequences * per_sequence + pieces * kDeviceAlignment;
}

template <Device D>
Result<std::unique_ptr<Decoder<D>>> Decoder<D>::make(D& device, const ModelSpec& spec,
                                                     const WeightFormats& formats,
                                                     Weights<D> weights, const DecoderLimits& limits,
                                                     void* kv, Collective<D>* ranks) {
  const DType dtype = formats.activations;
  Result<Stage<D>> stage = Stage<D>::make(device, limits.staged ? stage_bytes(limits, spec) : 0);
  if (!stage) return stage.status();
  std::unique_ptr<Decoder> decoder(
      new Decoder(device, spec, dtype, std::move(weights), limits, std::move(*stage)));
  TROUPE_CHECK((ranks != nullptr) == (spec.held_tokens.count > 0));
  decoder->ranks_ = ranks;
  if (ranks != nullptr) decoder->token_ranges_ = token_ranges(spec, ranks->shard().ranks);
  const std::size_t bytes = Activations::make(spec, dtype, limits, {}).bytes;
  Result<Buffer<D>> arena = Buffer<D>::make(device, bytes, "activations");
  if (!arena) return arena.status();
  decoder->arena_ = std::move(*arena);
  decoder->memory_ = Activations::make(spec, dtype, limits, decoder->arena_.view());

  if (spec.draft_layers > 0) {
    decoder->draft_batch_ = std::make_shared<DraftBatch>();
    const auto sequences = static_cast<std::size_t>(limits.sequences);
    decoder->draft_batch_->reserve(static_cast<std::size_t>(limits.rows) + sequences, sequences);
  }
  decoder->kv_ = kv_shape(spec, formats);
  decoder->kv_.format = limits.kv_format;
  decoder->kv_.ids = limits.kv_ids;
  decoder->kv_.data = kv;
  if (kv == nullptr) {
    Result<Buffer<D>> own = Buffer<D>::make(
        device, static_cast<std::size_t>(limits.kv_blocks) * decoder->kv_.block_bytes(), "KV blocks");
    if (!own) return own.status();
    decoder->kv_memory_ = std::move(*own);
    decoder->kv_.data = decoder->kv_memory_.data();
  }

  std::vector<float> frequencies(static_cast<std::size_t>(spec.head_dim / 2));
  kernels::rope_inverse_frequencies(frequencies.data(), spec.head_dim, static_cast<double>(spec.rope_theta));
  device.upload(decoder->memory_.inverse_frequencies, frequencies.data(), frequencies.size() * sizeof(float));
  if (spec.vision) {
    // Pairs turn by rows and columns in turn, and the last by time.
    std::vector<std::uint8_t> axes(frequencies.size(), 0);
    for (std::size_t i = 0; i + static_cast<std::size_t>(spec.vision->temporal_pairs) < axes.size(); ++i) {
      axes[i] = i % 2 == 0 ? 1 : 2;
    }
    device.upload(decoder->memory_.rope_axes, axes.data(), axes.size());
  }
  device.sync();
  return decoder;
}

}  // namespace troupe::model
