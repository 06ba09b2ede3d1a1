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
  std::vector<kernels::SequenceRows> ends;         ///< DeviceDrafts::ends, with the host's block tables
  std::vector<kernels::SequenceRows> staged_ends;  ///< the same with the device's
  std::vector<kernels::SequenceRows> last_ends;    ///< `ends` of the run before
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
    for (auto* list : {&sequences, &ends, &staged_ends, &last_ends}) list->reserve(most_sequences);
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
    ends.push_back({blocks, slot, 1, static_cast<std::int32_t>(picks.size())});
    picks.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
  }
};

template <Device D>
void Decoder<D>::keep_hidden(int rows) {
  draft_pass().pick(weights_.layout(), memory_, memory_.hidden, nullptr, rows, draft_norms_.hidden);
}

template <Device D>
void Decoder<D>::draft_rows(const StepBatch& batch, std::span<const DraftRows> drafts,
                            std::span<kernels::SampleResult> results, std::span<float> logits) {
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
  const auto copies = [&](const std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
    return RowCopies{stage_.put(to.data(), to.size()), stage_.put(from.data(), from.size()),
                     static_cast<int>(to.size())};
  };
  DeviceDrafts staged = stage_drafts();
  staged.carry = copies(rows.after_slots, rows.before_blocks);
  staged.keep = copies(rows.kept_slots, rows.kept_rows);
  staged.fill = copies(rows.last_blocks, rows.last_rows);
  run_drafts(staged, memory_.hidden, results, logits);
}

template <Device D>
void Decoder<D>::draft_again(std::span<const DraftAgain> drafts, std::span<kernels::SampleResult> results,
                             std::span<float> logits) {
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
  run_drafts(stage_drafts(), memory_.drafted, results, logits);
}

template <Device D>
DeviceDrafts Decoder<D>::stage_drafts() {
  DraftBatch& rows = *draft_batch_;
  const std::size_t count = rows.tokens.size(), drafts = rows.picks.size();
  rows.slots.resize(count);
  rows.positions.resize(count);
  kernels::describe_rows(rows.sequences.data(), static_cast<int>(rows.sequences.size()), rows.slots.data(),
                         rows.positions.data());
  const auto stage_blocks = [&](kernels::SequenceRows& sequence) {
    sequence.blocks = stage_.put(
        sequence.blocks,
        static_cast<std::size_t>((sequence.position + sequence.tokens - 1) / kernels::kBlockTokens + 1));
  };
  for (kernels::SequenceRows& sequence : rows.sequences) stage_blocks(sequence);
  rows.staged_ends = rows.ends;
  for (kernels::SequenceRows& end : rows.staged_ends) stage_blocks(end);
  return {.batch = {.sequences = stage_.put(rows.sequences.data(), rows.sequences.size()),
                    .slots = stage_.put(rows.slots.data(), count),
                    .count = static_cast<std::int32_t>(rows.sequences.size()),
                    .rows = static_cast<std::int32_t>(count)},
          .tokens = stage_.put(rows.tokens.data(), count),
          .positions = stage_.put(rows.positions.data(), count),
          .from = stage_.put(rows.from.data(), count),
          .picks = stage_.put(rows.picks.data(), drafts),
          .ends = stage_.put(rows.staged_ends.data(), drafts),
          .samples = stage_samples(rows.samples),
          .count = static_cast<int>(drafts)};
}

template <Device D>
void Decoder<D>::run_drafts(const DeviceDrafts& staged, const void* hidden,
                            std::span<kernels::SampleResult> results, std::span<float> logits) {
  const auto vocab = static_cast<std::size_t>(spec_.vocab);
  TROUPE_CHECK(results.size() == static_cast<std::size_t>(staged.count));
  TROUPE_CHECK(logits.empty() || logits.size() == results.size() * vocab);
  run_layer(staged, hidden);
  // Sampling may change the logits.
  for (std::size_t i = 0; !logits.empty() && i < results.size(); ++i) {
    const float* const row = memory_.draft_logits + i * static_cast<std::size_t>(kernels::padded(spec_.vocab));
    device_.download(logits.data() + i * vocab, row, vocab * sizeof(float));
  }
  end_run(staged);
  if (results.empty()) return;
  device_.download(results.data(), memory_.draft_results, results.size_bytes());
  device_.sync();
}

template <Device D>
void Decoder<D>::draft(const DeviceDrafts& drafts) {
  run_layer(drafts, memory_.hidden);
  end_run(drafts);
}

template <Device D>
void Decoder<D>::draft_again(const DeviceDrafts& drafts) {
  run_layer(drafts, memory_.drafted);
  end_run(drafts);
}

template <Device D>
void Decoder<D>::copy_hidden(void* out, std::size_t out_stride, const void* rows, std::size_t row_stride,
                             const RowCopies& copies) {
  if (copies.count == 0) return;
  kernels::run(device_, kernels::CopyRows{.out = out,
                                          .rows = rows,
                                          .to = copies.to,
                                          .from = copies.from,
                                          .count = copies.count,
                                          .out_stride = out_stride,
                                          .row_stride = row_stride,
                                          .row_bytes = hidden_bytes()});
}

// Everything up to the logits.
template <Device D>
void Decoder<D>::run_layer(const DeviceDrafts& drafts, const void* hidden) {
  TROUPE_CHECK(spec_.draft_layers == 1 && drafts.count <= limits_.sequences);
  TROUPE_CHECK(drafts.batch.rows <= limits_.rows + limits_.sequences);
  copy_hidden(memory_.kept_hidden, hidden_bytes(), block_tails(), kv_.block_bytes(), drafts.carry);
  if (drafts.batch.rows == 0) return;
  const auto pass = draft_pass();
  const WeightLayout& weights = weights_.layout();
  const DraftStep step{.weights = weights,
                       .memory = memory_,
                       .kv = kv_,
                       .batch = drafts.batch,
                       .tokens = drafts.tokens,
                       .positions = drafts.positions,
                       .hidden = hidden,
                       .from = drafts.from,
                       .count = drafts.count,
                       .picks = drafts.picks,
                       .ends = drafts.ends};
  pass.layer(step);
  if (drafts.count == 0) return;
  Activations head = memory_;
  head.logits = memory_.draft_logits;
  head.residual = step.output();
  const std::int32_t* const picks = step.apart() ? nullptr : drafts.picks;
  pass.pick(weights, head, memory_.drafted, picks, drafts.count, draft_norms_.hidden);
  if (draft_norms_.hidden == draft_norms_.output) {
    head.picked = memory_.drafted;
  } else {
    pass.pick(weights, head, memory_.picked, picks, drafts.count, draft_norms_.output);
  }
  pass.head(weights, head, drafts.count);
}

// The sampling, and the hidden rows that later runs begin with.
template <Device D>
void Decoder<D>::end_run(const DeviceDrafts& drafts) {
  if (drafts.count > 0) {
    kernels::run(device_, kernels::Sample{.results = memory_.draft_results,
                                          .rows = drafts.samples,
                                          .logits = memory_.draft_logits,
                                          .count = drafts.count,
                                          .vocab = spec_.vocab,
                                          .stride = kernels::padded(spec_.vocab)});
  }
  const std::size_t bytes = hidden_bytes();
  copy_hidden(memory_.kept_hidden, bytes, memory_.hidden, bytes, drafts.keep);
  copy_hidden(block_tails(), kv_.block_bytes(), memory_.hidden, bytes, drafts.fill);
}

template <Device D>
void Decoder<D>::save_hidden(std::uint32_t slot, std::span<std::byte> to) {
  TROUPE_CHECK(to.size() == hidden_bytes() && slot < static_cast<std::uint32_t>(limits_.sequences));
  device_.download(to.data(), static_cast<const std::byte*>(memory_.kept_hidden) + slot * to.size(), to.size());
  device_.sync();
}

template <Device D>
void Decoder<D>::load_hidden(std::uint32_t slot, std::span<const std::byte> from) {
  TROUPE_CHECK(from.size() == hidden_bytes() && slot < static_cast<std::uint32_t>(limits_.sequences));
  device_.upload(static_cast<std::byte*>(memory_.kept_hidden) + slot * from.size(), from.data(), from.size());
  device_.sync();
}

}  // namespace troupe::model
