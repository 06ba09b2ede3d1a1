#include "model/step_packer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/plan_check.h"

namespace troupe::model {
namespace {

constexpr std::size_t kAlignment = 8;

constexpr std::size_t rounded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::size_t StepPacker::piece_bytes(const wire::Capacity& capacity) {
  const auto rows = static_cast<std::size_t>(capacity.max_tokens_per_step);
  const auto sequences = static_cast<std::size_t>(capacity.max_slots);
  const std::size_t scores = rows * (sizeof(kernels::ScoreRow) + sizeof(std::int32_t));
  const std::size_t words = wire::kMaxRecordBytes + scores;
  // The shortest run of a record is its head and one rounded array.
  const std::size_t deltas = wire::kMaxRecordBytes / (sizeof(wire::TokenRun) + wire::kAlignment) +
                             words / (kernels::kWordsOfDelta * sizeof(std::uint32_t)) + 2;
  return rounded(sizeof(kernels::StepPiece) + rows * sizeof(kernels::InputRow) +
                 sequences * (sizeof(kernels::Sequence) + sizeof(kernels::SampleRow) + sizeof(std::int32_t)) +
                 words + deltas * sizeof(kernels::Delta) + 16 * kAlignment);
}

template <class T>
T* StepPacker::put(std::size_t count, std::uint32_t& at) {
  at = static_cast<std::uint32_t>(used_);
  used_ += rounded(count * sizeof(T));
  TROUPE_CHECK(used_ <= piece_.size());
  return reinterpret_cast<T*>(piece_.data() + at);
}

// `bytes`, a multiple of 4, will stand at `to` before the step's rows run.
void StepPacker::send(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  std::uint32_t at = 0;
  std::memcpy(put<std::byte>(bytes, at), from, bytes);
  auto* target = static_cast<std::uint32_t*>(to);
  for (std::size_t words = bytes / sizeof(std::uint32_t); words > 0;) {
    const auto part = static_cast<std::uint32_t>(std::min<std::size_t>(words, kernels::kWordsOfDelta));
    deltas_.push_back({target, at, part});
    target += part;
    at += part * static_cast<std::uint32_t>(sizeof(std::uint32_t));
    words -= part;
  }
}

std::byte* StepPacker::lists(std::uint32_t slot) const { return memory_.lists + slot * kMaxSamplingBytes; }

PackedStep StepPacker::pack(const wire::View& record, const wire::StepPlan& plan, const SequenceTable& table,
                            const StepBatch& batch, std::span<std::byte> piece) {
  piece_ = piece;
  used_ = 0;
  deltas_.clear();
  std::uint32_t start = 0;
  auto& head = *put<kernels::StepPiece>(1, start);
  head = {};
  pack_rows(batch, head);
  pack_samples(batch, head);
  pack_news(record, plan, table);
  pack_scores(batch);
  head.deltas = static_cast<std::int32_t>(deltas_.size());
  std::copy(deltas_.begin(), deltas_.end(), put<kernels::Delta>(deltas_.size(), head.deltas_at));

  PackedStep packed{.rows = head.rows,
                    .sequences = head.sequences,
                    .samples = head.samples,
                    .scores = static_cast<int>(batch.scores.size()),
                    .deltas = head.deltas};
  packed.decode = packed.rows > 0 && packed.rows == packed.sequences && packed.rows == packed.samples &&
                  packed.scores == 0;
  return packed;
}

void StepPacker::pack_news(const wire::View& record, const wire::StepPlan& plan, const SequenceTable& table) {
  static_assert(sizeof(wire::LogitBias) == sizeof(kernels::TokenBias));
  for (const wire::StartSequence& start : record.array(plan.started)) {
    const auto biases = record.array(start.logit_bias);
    const auto stop_ids = record.array(start.stop_ids);
    std::byte* to = lists(start.slot.slot);
    send(to, biases.data(), biases.size_bytes());
    if (start.sampling.min_tokens > 0) send(to + biases.size_bytes(), stop_ids.data(), stop_ids.size_bytes());
  }
  for (const wire::TokenRun& run : record.array(plan.tokens)) {
    const auto brought = record.array(run.ids);
    if (table.holds(run.slot)) send(ids(run.slot.slot) + run.position, brought.data(), brought.size_bytes());
  }
  for (const wire::BlockRun& run : record.array(plan.blocks)) {
    const auto brought = record.array(run.blocks);
    if (table.holds(run.slot)) send(blocks(run.slot.slot) + run.first, brought.data(), brought.size_bytes());
  }
}

void StepPacker::pack_rows(const StepBatch& batch, kernels::StepPiece& head) {
  head.rows = batch.rows();
  head.sequences = static_cast<std::int32_t>(batch.sequences.size());
  auto* rows = put<kernels::InputRow>(batch.tokens.size(), head.rows_at);
  auto* sequences = put<kernels::Sequence>(batch.sequences.size(), head.sequences_at);
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const kernels::Sequence& sequence = batch.sequences[s];
    const std::uint32_t slot = batch.slots[s];
    sequences[s] = sequence;
    sequences[s].blocks = blocks(slot);
    for (std::int32_t t = 0; t < sequence.tokens; ++t) {
      const std::int32_t position = sequence.position + t;
      const TokenId token = batch.tokens[static_cast<std::size_t>(sequence.row + t)];
      const kernels::KvSlot place{sequence.blocks[position / kernels::kBlockTokens],
                                  position % kernels::kBlockTokens};
      *rows++ = token == kUnsampled
                    ? kernels::InputRow{kernels::kSampledToken, position, place, ids(slot) + position}
                    : kernels::InputRow{token, position, place, nullptr};
    }
  }
}

void StepPacker::pack_samples(const StepBatch& batch, kernels::StepPiece& head) {
  head.samples = static_cast<std::int32_t>(batch.samples.size());
  auto* samples = put<kernels::SampleRow>(batch.samples.size(), head.samples_at);
  for (const SamplingOutcome& outcome : batch.outcomes) {
    if (outcome.sample < 0) continue;
    const std::uint32_t slot = outcome.slot.slot;
    kernels::SampleRow row = batch.samples[static_cast<std::size_t>(outcome.sample)];
    const auto* bias = reinterpret_cast<const kernels::TokenBias*>(lists(slot));
    row.tokens = ids(slot);
    row.bias = row.bias_count > 0 ? bias : nullptr;
    row.banned = row.banned_count > 0 ? reinterpret_cast<const TokenId*>(bias + row.bias_count) : nullptr;
    row.next = ids(slot) + row.known_tokens;
    samples[outcome.sample] = row;
  }
  auto* picks = put<std::int32_t>(batch.sample_rows.size(), head.picks_at);
  std::copy(batch.sample_rows.begin(), batch.sample_rows.end(), picks);
}

void StepPacker::pack_scores(const StepBatch& batch) {
  scores_ = batch.scores;
  for (kernels::ScoreRow& row : scores_) row.logits_row %= score_group_;
  send(memory_.scores, scores_.data(), scores_.size() * sizeof(kernels::ScoreRow));
  send(memory_.score_picks, batch.score_rows.data(), batch.score_rows.size() * sizeof(std::int32_t));
}

}  // namespace troupe::model
