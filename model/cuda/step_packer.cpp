#include "model/cuda/step_packer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/plan_check.h"

namespace troupe::model {
namespace {

constexpr std::size_t kAlignment = 16;

constexpr std::size_t rounded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
T* array_at(std::span<std::byte> piece, std::uint32_t offset) {
  return reinterpret_cast<T*>(piece.data() + offset);
}

}  // namespace

kernels::PieceLayout StepPacker::layout(const wire::Capacity& capacity) {
  const auto rows = static_cast<std::size_t>(capacity.max_tokens_per_step);
  const auto sequences = static_cast<std::size_t>(capacity.max_slots);
  const auto samples = static_cast<std::size_t>(most_samples(capacity));
  const std::size_t tops = most_tops(capacity) > 0 ? (rows + samples) * sizeof(kernels::TopRow) : 0;
  const bool sees = capacity.media_tokens > 0;
  const std::size_t media = sees ? rows * (sizeof(TokenPosition) + sizeof(std::uint8_t)) + 2 * kAlignment : 0;
  const std::size_t words =
      wire::kMaxRecordBytes + rows * (sizeof(kernels::ScoreRow) + sizeof(std::int32_t)) + tops +
      sequences * (sizeof(std::int32_t) + sizeof(kernels::SequenceRows)) + 6 * kAlignment + media;
  // The shortest TokenRun or BlockRun of a record takes its struct and one rounded array.
  // One more tells that the step is held; six arrays are sent beside those of the record, eight of a model
  // that sees.
  const std::size_t deltas = wire::kMaxRecordBytes / (sizeof(wire::TokenRun) + wire::kAlignment) +
                             words / (kernels::kWordsOfDelta * sizeof(std::uint32_t)) + 7 + (sees ? 2 : 0) +
                             kernels::kMostDeltaBlocks;  // of which the last ones are never written
  std::size_t end = rounded(sizeof(kernels::StepPiece));
  const auto take = [&end](std::size_t bytes) {
    const std::size_t at = end;
    end += rounded(bytes);
    return static_cast<std::uint32_t>(at);
  };
  kernels::PieceLayout made;
  made.rows = take(rows * sizeof(kernels::InputRow));
  made.slots = take(rows * sizeof(kernels::KvSlot));
  made.sequences = take(sequences * sizeof(kernels::SequenceRows));
  made.samples = take(samples * sizeof(kernels::SampleRow));
  made.picks = take(samples * sizeof(std::int32_t));
  if (capacity.max_drafts > 0) {
    made.derived = take(sequences * sizeof(kernels::DerivedSequence));
    made.drafting = take(sequences * sizeof(kernels::DraftingSequence));
  }
  made.deltas = take(deltas * sizeof(kernels::Delta));
  made.words = take(words);
  made.bytes = static_cast<std::uint32_t>(end);
  return made;
}

void StepPacker::pad(const kernels::PieceLayout& layout, std::span<std::byte> piece, int from, int rows,
                     int sequences) {
  for (int i = from; i < rows; ++i) {
    array_at<kernels::InputRow>(piece, layout.rows)[i] = {0, 0};
    array_at<kernels::KvSlot>(piece, layout.slots)[i] = {kernels::kPaddingBlock, 0};
  }
  for (int i = from; i < sequences; ++i) {
    array_at<kernels::SequenceRows>(piece, layout.sequences)[i] = {nullptr, 0, 0, i};
    array_at<kernels::SampleRow>(piece, layout.samples)[i] = {.logits_row = -1};
    if (layout.drafting != 0) array_at<kernels::DraftingSequence>(piece, layout.drafting)[i] = {};
  }
}

void StepPacker::pad_decode(const kernels::PieceLayout& layout, std::span<std::byte> piece, int from,
                            int sequences, int width) {
  for (int i = from * width; i < sequences * width; ++i) {
    array_at<kernels::InputRow>(piece, layout.rows)[i] = {0, 0};
    array_at<kernels::KvSlot>(piece, layout.slots)[i] = {kernels::kPaddingBlock, 0};
    array_at<kernels::SampleRow>(piece, layout.samples)[i] = {.logits_row = -1};
  }
  for (int i = from; i < sequences; ++i) {
    array_at<kernels::SequenceRows>(piece, layout.sequences)[i] = {nullptr, 0, 0, i * width};
    if (layout.drafting != 0) array_at<kernels::DraftingSequence>(piece, layout.drafting)[i] = {};
    if (layout.derived == 0) continue;
    array_at<kernels::DerivedSequence>(piece, layout.derived)[i] = {
        .sequence = i, .row = i * width, .rows = width, .sample = i * width};
  }
}

// Sends `bytes`, a multiple of 4, to device address `to`, where they are before the step's rows run.
void StepPacker::send(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto* target = static_cast<std::uint32_t*>(to);
  auto* deltas = array_at<kernels::Delta>(piece_, layout_.deltas);
  std::size_t words = bytes / sizeof(std::uint32_t);
  if (words == 1) {
    std::uint32_t word = 0;
    std::memcpy(&word, from, sizeof word);
    deltas[deltas_++] = {target, word, 1};
    return;
  }
  std::uint32_t at = words_end_;
  words_end_ += static_cast<std::uint32_t>(bytes);
  TROUPE_CHECK(words_end_ <= layout_.bytes);
  TROUPE_CHECK(layout_.deltas + (static_cast<std::size_t>(deltas_) + words / kernels::kWordsOfDelta + 2) *
                                    sizeof(kernels::Delta) <=
               layout_.words);
  std::memcpy(array_at<std::byte>(piece_, at), from, bytes);
  while (words > 0) {
    // A delta of one word holds the word itself instead of its offset, so no last part may have one word.
    const std::size_t most = words == kernels::kWordsOfDelta + 1 ? words - 2 : kernels::kWordsOfDelta;
    const auto part = static_cast<std::uint32_t>(std::min(words, most));
    deltas[deltas_++] = {target, at, part};
    target += part;
    at += part * static_cast<std::uint32_t>(sizeof(std::uint32_t));
    words -= part;
  }
}

std::byte* StepPacker::lists(std::uint32_t slot) const { return memory_.lists + slot * kMaxSamplingBytes; }

PackedStep StepPacker::pack(const wire::RecordView& record, const wire::StepPlan& plan,
                            const WorkerSequences& table, const StepBatch& batch,
                            std::span<std::byte> piece) {
  TROUPE_CHECK(piece.size() >= layout_.bytes);
  piece_ = piece;
  words_end_ = layout_.words;
  deltas_ = 0;
  pack_rows(batch);
  const int gated = pack_samples(batch);
  constexpr std::uint32_t kHeld = 1;
  if (gated > 0 || !batch.proposing.empty()) send(memory_.held, &kHeld, sizeof kHeld);
  pack_sequence_changes(record, plan, table);
  pack_scores(batch);
  pack_tops(batch);
  PackedStep packed{.rows = batch.rows(),
                    .sequences = static_cast<int>(batch.sequences.size()),
                    .samples = static_cast<int>(batch.samples.size()),
                    .scores = static_cast<int>(batch.scores.size()),
                    .most_tokens = batch.most_tokens,
                    .deltas = deltas_,
                    .gated = gated,
                    .proposing = static_cast<int>(batch.proposing.size()),
                    .sample_tops = batch.sample_tops,
                    .score_tops = batch.score_tops,
                    .tops = batch.tops,
                    .embeds = batch.embeds};
  packed.reads = pack_reads(batch);
  if (!batch.positions.empty()) pack_media(batch, packed);
  pack_derived(batch, packed);
  packed.deltas = deltas_;
  // Deltas of the step that used this piece before must not follow these.
  auto& head = *array_at<kernels::StepPiece>(piece_, 0);
  auto* deltas = array_at<kernels::Delta>(piece_, layout_.deltas);
  if (head.deltas > deltas_) std::fill(deltas + deltas_, deltas + head.deltas, kernels::Delta{});
  head.deltas = deltas_;
  packed.decode = packed.rows > 0 && packed.rows == packed.sequences * packed.width &&
                  packed.rows == packed.samples && packed.scores == 0 && packed.tops == 0 &&
                  !packed.spatial && !packed.sees;
  return packed;
}

void StepPacker::pack_sequence_changes(const wire::RecordView& record, const wire::StepPlan& plan,
                                       const WorkerSequences& table) {
  static_assert(sizeof(wire::LogitBias) == sizeof(kernels::TokenBias));
  for (const wire::StartSequence& start : record.array(plan.started)) {
    const auto biases = record.array(start.logit_bias);
    const auto stop_ids = record.array(start.stop_ids);
    std::byte* to = lists(start.slot.slot);
    send(to, biases.data(), biases.size_bytes());
    if (start.sampling.min_tokens > 0) send(to + biases.size_bytes(), stop_ids.data(), stop_ids.size_bytes());
    if (memory_.states == nullptr) continue;
    const auto prediction = record.array(start.prediction);
    const kernels::SlotState state{.prediction_count = static_cast<std::int32_t>(prediction.size())};
    send(memory_.states + start.slot.slot, &state, sizeof state);
    send(memory_.predictions + std::size_t{start.slot.slot} * wire::kMostPredicted, prediction.data(),
         prediction.size_bytes());
  }
  for (const wire::BlockRun& run : record.array(plan.blocks)) {
    const auto brought = record.array(run.blocks);
    if (table.holds(run.slot)) send(blocks(run.slot.slot) + run.first, brought.data(), brought.size_bytes());
  }
}

void StepPacker::pack_rows(const StepBatch& batch) {
  auto* const rows = array_at<kernels::InputRow>(piece_, layout_.rows);
  auto* const places = array_at<kernels::KvSlot>(piece_, layout_.slots);
  if (batch.width > 1 || !batch.derived.empty()) {  // some rows are no sequence's
    std::fill_n(rows, batch.tokens.size(), kernels::InputRow{});
    std::fill_n(places, batch.tokens.size(), kernels::KvSlot{kernels::kPaddingBlock, 0});
  }
  auto* sequences = array_at<kernels::SequenceRows>(piece_, layout_.sequences);
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const kernels::SequenceRows& sequence = batch.sequences[s];
    const std::uint32_t slot = batch.slots[s];
    sequences[s] = sequence;
    sequences[s].blocks = blocks(slot);
    const std::int32_t last_block_at = (sequence.position + sequence.tokens - 1) / kernels::kBlockTokens;
    for (std::int32_t t = 0; t < sequence.tokens; ++t) {
      const std::int32_t position = sequence.position + t;
      const TokenId token = batch.tokens[static_cast<std::size_t>(sequence.row + t)];
      const std::int32_t row = sequence.row + t;
      rows[row] = {token == kUnsampled ? kernels::sampled_by(slot) : token, position};
      const std::int32_t block_at = position / kernels::kBlockTokens;
      places[row] = {block_at == last_block_at ? batch.last_blocks[s] : sequence.blocks[block_at],
                     position % kernels::kBlockTokens};
    }
  }
}

// Rows of text stand at one position, though another one than in their sequence behind an item: a decode step
// of such sequences is a step like any other.
void StepPacker::pack_media(const StepBatch& batch, PackedStep& packed) {
  static_assert(sizeof(TokenPosition) == 3 * sizeof(std::int32_t));
  auto* rows = array_at<kernels::InputRow>(piece_, layout_.rows);
  for (std::size_t i = 0; i < batch.positions.size(); ++i) {
    const TokenPosition& at = batch.positions[i];
    rows[i].position = at.time;
    packed.spatial = packed.spatial || at.row != at.time || at.column != at.time;
  }
  packed.sees = !batch.kinds.empty();
  packed.embedded = batch.embedded;
  if (packed.spatial)
    send(memory_.positions, batch.positions.data(), batch.positions.size() * sizeof(TokenPosition));
  if (!packed.sees) return;
  kinds_ = batch.kinds;
  kinds_.resize((kinds_.size() + 3) / 4 * 4);
  send(memory_.kinds, kinds_.data(), kinds_.size());
}

// In a decode step every sequence has an entry, at its own index: those whose rows the host has made, too.
void StepPacker::pack_derived(const StepBatch& batch, PackedStep& packed) {
  if (layout_.derived == 0) return;
  auto* const derived = array_at<kernels::DerivedSequence>(piece_, layout_.derived);
  auto* const drafting = array_at<kernels::DraftingSequence>(piece_, layout_.drafting);
  std::ranges::copy(batch.drafting, drafting);
  if (batch.width == 0) {
    for (const kernels::DraftingSequence& one : batch.drafting)
      packed.wanted = std::max(packed.wanted, one.drafts);
    packed.derived = static_cast<int>(batch.derived.size());
    packed.drafts = std::ranges::any_of(batch.derived, [](const auto& one) { return one.drafts > 0; });
    std::ranges::copy(batch.derived, derived);
    return;
  }
  packed.width = batch.width;
  packed.most_tokens = batch.width;
  packed.drafts = batch.width > 1;
  packed.wanted = batch.width - 1;
  packed.derived = packed.sequences;
  for (int i = 0; i < packed.sequences; ++i) derived[i] = {.sequence = i};
  for (const kernels::DerivedSequence& one : batch.derived) {
    derived[one.sequence] = one;
    derived[one.sequence].rows = batch.width;
    drafting[one.sequence].derived = one.sequence;
  }
}

kernels::SampleRow StepPacker::sample_row(const StepBatch& batch, const SamplingOutcome& outcome) const {
  const std::uint32_t slot = outcome.slot.slot;
  kernels::SampleRow row = batch.samples[static_cast<std::size_t>(outcome.sample)];
  const auto* bias = reinterpret_cast<const kernels::TokenBias*>(lists(slot));
  row.tokens = memory_.kv_ids;
  row.blocks = blocks(slot);
  row.block_ids = memory_.ids_to_next_block;
  row.bias = row.bias_count > 0 ? bias : nullptr;
  row.banned = row.banned_count > 0 ? reinterpret_cast<const TokenId*>(bias + row.bias_count) : nullptr;
  row.next = memory_.sampled + slot;
  return row;
}

/// Returns the number of gated rows, late ones among them.
int StepPacker::pack_samples(const StepBatch& batch) {
  auto* samples = array_at<kernels::SampleRow>(piece_, layout_.samples);
  if (batch.width > 1) std::fill_n(samples, batch.samples.size(), kernels::SampleRow{.logits_row = -1});
  int gated = 0;
  for (const SamplingOutcome& outcome : batch.outcomes) {
    gated += outcome.gated ? 1 : 0;
    if (outcome.sample < 0) continue;
    samples[outcome.sample] = sample_row(batch, outcome);
    if (outcome.gated) samples[outcome.sample].logits_row = -1;
  }
  for (const kernels::DerivedSequence& derived : batch.derived) {
    // Which of its tokens is the last is known when they have been compared (kernels::AcceptDrafts).
    for (std::int32_t i = 0; i <= derived.drafts; ++i) samples[derived.sample + i].next = nullptr;
  }
  std::copy(batch.sample_rows.begin(), batch.sample_rows.end(),
            array_at<std::int32_t>(piece_, layout_.picks));
  return gated;
}

void StepPacker::pack_gates(const StepBatch& batch, const StepGates& gates, std::uint64_t step,
                            const HeldGates& to) {
  TROUPE_CHECK(to.gates.size() >= batch.samples.size() && to.proposing.size() >= batch.proposing.size());
  std::fill_n(to.gates.begin(), batch.samples.size(), kernels::kClosedGate);
  std::ranges::copy(batch.proposing, to.proposing.begin());
  // In a decode step yields lie at the sequences' indices.
  for (std::size_t i = 0; batch.width > 0 && i < batch.proposing.size(); ++i) {
    if (std::int32_t& derived = to.proposing[i].derived; derived >= 0)
      derived = batch.derived[static_cast<std::size_t>(derived)].sequence;
  }
  std::size_t gated = 0, proposing = 0;
  for (const SamplingOutcome& outcome : batch.outcomes) {
    if (!outcome.gated) continue;
    const std::size_t row = gated++;
    if (outcome.sample < 0) continue;
    const std::int32_t masks = gates.count(step, row);
    for (std::int32_t i = 0; i < masks; ++i)
      to.gates[static_cast<std::size_t>(outcome.sample + i)] = gates.place(step, row, i);
    while (proposing < batch.proposing.size() && batch.proposing[proposing].sample < outcome.sample)
      ++proposing;
    if (proposing == batch.proposing.size() || batch.proposing[proposing].sample != outcome.sample) continue;
    kernels::ProposingSequence& one = to.proposing[proposing];
    const std::span<const TokenId> forced = gates.forced(step, row);
    one.masks = masks;
    one.forced_count = static_cast<std::int32_t>(forced.size());
    std::ranges::copy(forced, one.forced);
  }
}

void StepPacker::pack_scores(const StepBatch& batch) {
  scores_ = batch.scores;
  for (kernels::ScoreRow& row : scores_) row.logits_row %= slots_;
  send(memory_.scores, scores_.data(), scores_.size() * sizeof(kernels::ScoreRow));
  send(memory_.score_picks, batch.score_rows.data(), batch.score_rows.size() * sizeof(std::int32_t));
}

void StepPacker::pack_tops(const StepBatch& batch) {
  score_tops_ = batch.score_tops;
  for (kernels::TopRow& row : score_tops_) row.logits_row %= slots_;
  send(memory_.score_tops, score_tops_.data(), score_tops_.size() * sizeof(kernels::TopRow));
  send(memory_.sample_tops, batch.sample_tops.data(), batch.sample_tops.size() * sizeof(kernels::TopRow));
}

std::optional<int> StepPacker::pack_reads(const StepBatch& batch) {
  const std::span sequences(array_at<kernels::SequenceRows>(piece_, layout_.sequences),
                            batch.sequences.size());
  if (!reads_.find(batch, sequences, static_cast<std::size_t>(slots_))) return std::nullopt;
  send(memory_.read_rows, reads_.rows().data(), reads_.rows().size_bytes());
  send(memory_.read_sequences, reads_.sequences().data(), reads_.sequences().size_bytes());
  return reads_.count();
}

}  // namespace troupe::model
