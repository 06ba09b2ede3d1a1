#pragma once
// Decoder<D>: the draft layer, where ModelSpec::draft_layers says that there is one.
#include "model/decoder.h"
#include "model/draft_pass.inl"

namespace troupe::model {

/// The rows of one run of the draft layer, and the sequences whose next token it drafts. Host memory.
struct DraftBatch {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> from, positions;
  std::vector<kernels::KvSlot> slots;
  std::vector<kernels::SequenceRows> sequences;
  std::vector<std::int32_t> picks;          ///< rows that draft
  std::vector<kernels::SampleRow> samples;  ///< of picks[i]
  std::vector<kernels::SequenceRows> ends;  ///< of picks[i]: block table and KV slot
  std::vector<kernels::SequenceRows> last_ends;  ///< of the run before
  std::vector<std::int32_t> kept_rows, kept_slots;
  std::vector<std::int32_t> last_rows, last_blocks;      ///< the last rows of blocks, and these
  std::vector<std::int32_t> before_blocks, after_slots;  ///< blocks from whose last row a slot goes on

  void clear() {
    tokens.clear();
    from.clear();
    sequences.clear();
    picks.clear();
    samples.clear();
    ends.clear();
    kept_rows.clear();
    kept_slots.clear();
    last_rows.clear();
    last_blocks.clear();
    before_blocks.clear();
    after_slots.clear();
  }

  /// So that later runs allocate nothing. At most so many rows and sequences.
  void reserve(std::size_t most_rows, std::size_t most_sequences) {
    tokens.reserve(most_rows);
    slots.reserve(most_rows);
    for (auto* by_row : {&from, &positions, &last_rows, &last_blocks}) by_row->reserve(most_rows);
    samples.reserve(most_sequences);
    for (auto* list : {&sequences, &ends, &last_ends}) list->reserve(most_sequences);
    for (auto* list : {&picks, &kept_rows, &kept_slots, &before_blocks, &after_slots}) list->reserve(most_sequences);
  }

  void add(TokenId token, std::int32_t hidden_row) {
    tokens.push_back(token);
    from.push_back(hidden_row);
  }

  /// The rows added since `first` are consecutive KV slots that end with `slot`.
  void end_sequence(std::size_t first, const BlockId* blocks, std::int32_t slot) {
    const auto count = static_cast<std::int32_t>(tokens.size() - first);
    if (count == 0) return;
    sequences.push_back({blocks, slot + 1 - count, count, static_cast<std::int32_t>(first)});
  }

  /// The last row drafts.
  void draft(const kernels::SampleRow& sample, const BlockId* blocks, std::int32_t slot) {
    samples.push_back(sample);
    samples.back().logits_row = static_cast<std::int32_t>(picks.size());
    picks.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
    ends.push_back({blocks, slot});
  }
};

template <Device D>
void Decoder<D>::keep_hidden(int rows)
  requires RunsDraftLayer<D>
{
  draft_pass().pick(weights_.layout(), memory_, memory_.hidden, nullptr, rows, draft_norms_.hidden);
}

template <Device D>
void Decoder<D>::draft_rows(const StepBatch& batch, std::span<const DraftRows> drafts,
                            std::span<kernels::SampleResult> results, std::span<float> logits)
  requires RunsDraftLayer<D>
{
  TROUPE_CHECK(drafts.size() <= static_cast<std::size_t>(limits_.sequences));
  DraftBatch& rows = *draft_batch_;
  rows.clear();
  for (const DraftRows& draft : drafts) {
    const auto sequence = static_cast<std::size_t>(draft.sequence);
    const kernels::SequenceRows& ran = batch.sequences[sequence];
    const auto slot = static_cast<std::int32_t>(batch.slots[sequence]);
    TROUPE_CHECK(draft.rows >= 1 && draft.rows <= ran.tokens && slot < limits_.sequences);
    TROUPE_CHECK(!draft.carried || ran.position > 0);
    const std::size_t first = rows.tokens.size();
    const std::int32_t last = ran.row + draft.rows - 1;
    const auto token = [&](std::int32_t row) { return batch.tokens[static_cast<std::size_t>(row)]; };
    if (draft.carried) {
      rows.add(token(ran.row), -1 - slot);
      if (ran.position % kernels::kBlockTokens == 0) {
        rows.before_blocks.push_back(draft.blocks[ran.position / kernels::kBlockTokens - 1]);
        rows.after_slots.push_back(slot);
      }
    }
    for (std::int32_t p = ran.position | (kernels::kBlockTokens - 1); p < ran.position + draft.rows;
         p += kernels::kBlockTokens) {
      rows.last_rows.push_back(ran.row + p - ran.position);
      rows.last_blocks.push_back(draft.blocks[p / kernels::kBlockTokens]);
    }
    for (std::int32_t row = ran.row; row < last; ++row) rows.add(token(row + 1), row);
    const std::int32_t end = ran.position + draft.rows - (draft.next == kNoToken ? 1 : 0);
    if (draft.next != kNoToken) {
      rows.add(draft.next, last);
      rows.draft(draft.sample, draft.blocks, end);
    }
    rows.end_sequence(first, draft.blocks, end);
    rows.kept_rows.push_back(last);
    rows.kept_slots.push_back(slot);
  }
  stage_.reset();
  const std::size_t bytes = hidden_bytes(), block = kv_.block_bytes();
  void* const tails = static_cast<std::byte*>(kv_.data) + kv_.tail_offset();
  const auto copy = [&](void* out, std::size_t out_stride, const std::vector<std::int32_t>& to, const void* from,
                        std::size_t row_stride, const std::vector<std::int32_t>& picks) {
    if (to.empty()) return;
    kernels::run(device_, kernels::CopyRows{.out = out,
                                            .rows = from,
                                            .to = stage_.put(to.data(), to.size()),
                                            .from = stage_.put(picks.data(), picks.size()),
                                            .count = static_cast<int>(to.size()),
                                            .out_stride = out_stride,
                                            .row_stride = row_stride,
                                            .row_bytes = bytes});
  };
  copy(memory_.kept_hidden, bytes, rows.after_slots, tails, block, rows.before_blocks);
  run_drafts(memory_.hidden, results, logits);
  copy(memory_.kept_hidden, bytes, rows.kept_slots, memory_.hidden, bytes, rows.kept_rows);
  copy(tails, block, rows.last_blocks, memory_.hidden, bytes, rows.last_rows);
}

template <Device D>
void Decoder<D>::draft_again(std::span<const DraftAgain> drafts, std::span<kernels::SampleResult> results,
                             std::span<float> logits)
  requires RunsDraftLayer<D>
{
  DraftBatch& rows = *draft_batch_;
  std::swap(rows.ends, rows.last_ends);
  rows.clear();
  for (const DraftAgain& draft : drafts) {
    TROUPE_CHECK(static_cast<std::size_t>(draft.of) < rows.last_ends.size());
    const kernels::SequenceRows& end = rows.last_ends[static_cast<std::size_t>(draft.of)];
    const std::size_t first = rows.tokens.size();
    rows.add(draft.token, draft.of);
    rows.draft(draft.sample, end.blocks, end.position + 1);
    rows.end_sequence(first, end.blocks, end.position + 1);
  }
  stage_.reset();
  run_drafts(memory_.drafted, results, logits);
}

// Runs the rows of draft_batch_ and samples.
template <Device D>
void Decoder<D>::run_drafts(const void* hidden, std::span<kernels::SampleResult> results, std::span<float> logits)
  requires RunsDraftLayer<D>
{
  DraftBatch& rows = *draft_batch_;
  const std::size_t count = rows.tokens.size(), drafts = rows.picks.size();
  const auto vocab = static_cast<std::size_t>(spec_.vocab);
  TROUPE_CHECK(spec_.draft_layers == 1 && results.size() == drafts);
  TROUPE_CHECK(logits.empty() || logits.size() == drafts * vocab);
  if (count == 0) return;
  rows.slots.resize(count);
  rows.positions.resize(count);
  kernels::describe_rows(rows.sequences.data(), static_cast<int>(rows.sequences.size()), rows.slots.data(),
                         rows.positions.data());
  for (kernels::SequenceRows& sequence : rows.sequences) {
    sequence.blocks = stage_.put(
        sequence.blocks,
        static_cast<std::size_t>((sequence.position + sequence.tokens - 1) / kernels::kBlockTokens + 1));
  }
  const auto pass = draft_pass();
  const WeightLayout& weights = weights_.layout();
  pass.layer({.weights = weights,
              .memory = memory_,
              .kv = kv_,
              .batch = {.sequences = stage_.put(rows.sequences.data(), rows.sequences.size()),
                        .slots = stage_.put(rows.slots.data(), count),
                        .count = static_cast<std::int32_t>(rows.sequences.size()),
                        .rows = static_cast<std::int32_t>(count)},
              .tokens = stage_.put(rows.tokens.data(), count),
              .positions = stage_.put(rows.positions.data(), count),
              .hidden = hidden,
              .from = stage_.put(rows.from.data(), count)});
  if (drafts == 0) return;
  const std::int32_t* const picks = stage_.put(rows.picks.data(), drafts);
  const int picked = static_cast<int>(drafts);
  pass.pick(weights, memory_, memory_.drafted, picks, picked, draft_norms_.hidden);
  pass.pick(weights, memory_, memory_.picked, picks, picked, draft_norms_.output);
  pass.head(weights, memory_, picked);
  for (std::size_t i = 0; !logits.empty() && i < drafts; ++i) {
    const float* const row = memory_.logits + i * static_cast<std::size_t>(kernels::padded(spec_.vocab));
    device_.download(logits.data() + i * vocab, row, vocab * sizeof(float));
  }
  draw(stage_samples(rows.samples), picked);
  fetch(results);
}

template <Device D>
void Decoder<D>::save_hidden(std::uint32_t slot, std::span<std::byte> to)
  requires RunsDraftLayer<D>
{
  TROUPE_CHECK(to.size() == hidden_bytes() && slot < static_cast<std::uint32_t>(limits_.sequences));
  device_.download(to.data(), static_cast<const std::byte*>(memory_.kept_hidden) + slot * to.size(), to.size());
  device_.sync();
}

template <Device D>
void Decoder<D>::load_hidden(std::uint32_t slot, std::span<const std::byte> from)
  requires RunsDraftLayer<D>
{
  TROUPE_CHECK(from.size() == hidden_bytes() && slot < static_cast<std::uint32_t>(limits_.sequences));
  device_.upload(static_cast<std::byte*>(memory_.kept_hidden) + slot * from.size(), from.data(), from.size());
  device_.sync();
}

}  // namespace troupe::model
