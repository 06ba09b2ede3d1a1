#include "model/cuda/sequence_table.h"

#include <algorithm>

#include "base/check.h"

namespace troupe::model {

WorkerSequences::Slot* WorkerSequences::find(SlotRef ref) {
  TROUPE_CHECK(ref.slot < slots_.size());
  Slot& slot = slots_[ref.slot];
  return slot.live && slot.generation == ref.generation ? &slot : nullptr;
}

bool WorkerSequences::holds(SlotRef ref) const {
  TROUPE_CHECK(ref.slot < slots_.size());
  const Slot& slot = slots_[ref.slot];
  return slot.live && slot.generation == ref.generation;
}

void WorkerSequences::reset() {
  for (Slot& slot : slots_) slot.live = false;
  announced_.clear();
}

void WorkerSequences::announce(SlotRef slot, const std::vector<MediaItem>& items) {
  announced_[slot] = std::make_unique<const Media>(Media{items, MediaPositions(items)});
}

void WorkerSequences::apply(const wire::RecordView& record, const wire::StepPlan& plan, StepBatch& batch) {
  batch.clear();
  for (const SlotRef ref : record.array(plan.finished)) {
    if (Slot* slot = find(ref)) slot->live = false;
    if (!announced_.empty()) announced_.erase(ref);
  }
  for (const wire::StartSequence& s : record.array(plan.started)) start(record, s);
  for (const wire::TokenRun& run : record.array(plan.tokens)) {
    const std::span<const TokenId> ids = record.array(run.ids);
    if (Slot* slot = find(run.slot)) slot->ids.insert(slot->ids.end(), ids.begin(), ids.end());
  }
  for (const wire::BlockRun& run : record.array(plan.blocks)) {
    Slot* slot = find(run.slot);
    if (slot == nullptr) continue;
    const std::span<const BlockId> blocks = record.array(run.blocks);
    const auto first = static_cast<std::size_t>(run.first);
    slot->blocks.resize(std::max(slot->blocks.size(), first + blocks.size()));
    std::copy(blocks.begin(), blocks.end(), slot->blocks.begin() + run.first);
    slot->last_block_at = -1;
  }
  for (const wire::PlanRow& row : record.array(plan.rows)) add_row(row, batch);
  describe_media(batch);
}

void WorkerSequences::start(const wire::RecordView& record, const wire::StartSequence& start) {
  Slot& slot = slots_[start.slot.slot];
  TROUPE_CHECK(!slot.live);
  slot.live = true;
  slot.generation = start.slot.generation;
  slot.prompt_tokens = start.prompt_tokens;
  slot.last_block_at = -1;
  slot.sampling = start.sampling;
  slot.media.reset();
  if (!announced_.empty()) {
    if (const auto node = announced_.extract(start.slot)) slot.media = std::move(node.mapped());
  }
  slot.ids.clear();
  slot.blocks.clear();
  const std::span<const TokenId> stop_ids = record.array(start.stop_ids);
  slot.stop_ids.assign(stop_ids.begin(), stop_ids.end());
  slot.bias.clear();
  for (const wire::LogitBias& b : record.array(start.logit_bias)) slot.bias.push_back({b.token, b.bias});
}

void WorkerSequences::add_row(const wire::PlanRow& row, StepBatch& batch) {
  Slot* slot = find(row.slot);
  const bool samples = (row.flags & wire::kSamples) != 0;
  if (slot == nullptr) {
    const bool gated = (row.flags & wire::kGated) != 0;
    if (samples) batch.outcomes.push_back({row.slot, row.position + row.tokens, -1, gated});
    return;
  }
  const auto first_row = static_cast<std::int32_t>(batch.tokens.size());
  if ((row.flags & wire::kAgain) != 0) slot->ids.resize(static_cast<std::size_t>(row.position + row.tokens));
  const auto known = static_cast<std::int32_t>(slot->ids.size()), end = row.position + row.tokens;
  const auto ids = slot->ids.begin();
  if (row.position < known)
    batch.tokens.insert(batch.tokens.end(), ids + row.position, ids + std::min(end, known));
  batch.tokens.resize(static_cast<std::size_t>(first_row + row.tokens), kUnsampled);
  batch.sequences.push_back({slot->blocks.data(), row.position, row.tokens, first_row});
  batch.slots.push_back(row.slot.slot);
  const std::int32_t last_block_at = (end - 1) / kernels::kBlockTokens;
  if (slot->last_block_at != last_block_at) {
    slot->last_block_at = last_block_at;
    slot->last_block = slot->blocks[static_cast<std::size_t>(last_block_at)];
  }
  batch.last_blocks.push_back(slot->last_block);
  if (slot->sampling.prompt_logprobs >= 0) add_scores(row, *slot, first_row, batch);
  if (samples) {
    add_sample(row, *slot, batch);
    batch.sample_rows.push_back(first_row + row.tokens - 1);
  }
}

// As long as all rows of a step are those of text sequences, it has no positions and no kinds.
void WorkerSequences::describe_media(StepBatch& batch) const {
  const auto has_media = [this](std::uint32_t slot) { return slots_[slot].media != nullptr; };
  if (!vision_ || std::ranges::none_of(batch.slots, has_media)) return;
  batch.positions.reserve(batch.tokens.size());
  batch.kinds.assign(batch.tokens.size(), kTextRow);
  bool sees = false;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const kernels::SequenceRows& rows = batch.sequences[i];
    const Slot& slot = slots_[batch.slots[i]];
    if (slot.media != nullptr) {
      add_media(slot, {batch.slots[i], slot.generation}, rows, batch);
      continue;
    }
    for (std::int32_t at = rows.position; at < rows.position + rows.tokens; ++at)
      batch.positions.push_back({at, at, at});
  }
  for (const std::uint8_t kind : batch.kinds) sees = sees || kind == kVisionRow;
  if (!sees) batch.kinds.clear();
}

void WorkerSequences::add_media(const Slot& slot, SlotRef ref, const kernels::SequenceRows& rows,
                                StepBatch& batch) const {
  const std::int32_t end = rows.position + rows.tokens;
  for (std::int32_t at = rows.position; at < end; ++at) {
    batch.positions.push_back(slot.media->positions.at(at));
    const auto row = static_cast<std::size_t>(rows.row + at - rows.position);
    // What the model has generated is text, whatever its id.
    if (at < slot.prompt_tokens && vision_->is_boundary(batch.tokens[row])) batch.kinds[row] = kVisionRow;
  }
  for (std::size_t i = 0; i < slot.media->items.size(); ++i) {
    const MediaItem& item = slot.media->items[i];
    const std::int32_t first = std::max(item.first, rows.position), last = std::min(item.end(), end);
    if (first >= last) continue;
    const std::int32_t row = rows.row + first - rows.position;
    std::fill_n(batch.kinds.begin() + row, last - first, kVisionRow);
    batch.embedded.push_back({.slot = ref,
                              .item = static_cast<std::int32_t>(i),
                              .first = first - item.first,
                              .row = row,
                              .count = last - first});
  }
}

void WorkerSequences::add_sample(const wire::PlanRow& row, const Slot& slot, StepBatch& batch) {
  const wire::Sampling& sampling = slot.sampling;
  const std::int32_t known = row.position + row.tokens;
  const std::int32_t outputs = known - slot.prompt_tokens;
  const bool banned = outputs < sampling.min_tokens;
  const auto index = static_cast<std::int32_t>(batch.samples.size());
  batch.outcomes.push_back({row.slot, known, index, (row.flags & wire::kGated) != 0,
                            batch.add_tops(batch.sample_tops, index, sampling.logprobs)});
  batch.samples.push_back({
      .logits_row = index,
      .temperature = sampling.temperature,
      .top_p = sampling.top_p,
      .min_p = sampling.min_p,
      .top_k = sampling.top_k,
      .repetition_penalty = sampling.repetition_penalty,
      .presence_penalty = sampling.presence_penalty,
      .frequency_penalty = sampling.frequency_penalty,
      .seed = sampling.seed,
      .choice = sampling.choice,
      .position = static_cast<std::uint32_t>(outputs),
      .tokens = slot.ids.data(),
      .prompt_tokens = slot.prompt_tokens,
      .known_tokens = known,
      .banned = banned ? slot.stop_ids.data() : nullptr,
      .banned_count = banned ? static_cast<std::int32_t>(slot.stop_ids.size()) : 0,
      .bias = slot.bias.data(),
      .bias_count = static_cast<std::int32_t>(slot.bias.size()),
      .logprobs = sampling.logprobs,
  });
}

// The logits of position p are for token p + 1: a row scores the prompt tokens after each of its own.
void WorkerSequences::add_scores(const wire::PlanRow& row, const Slot& slot, std::int32_t first_row,
                                 StepBatch& batch) {
  const std::int32_t end = std::min(row.position + row.tokens, slot.prompt_tokens - 1);
  for (std::int32_t position = row.position; position < end; ++position) {
    const auto index = static_cast<std::int32_t>(batch.scores.size());
    const std::int32_t wanted = slot.sampling.prompt_logprobs;
    batch.scores.push_back(
        {.logits_row = index, .token = slot.ids[static_cast<std::size_t>(position) + 1], .logprobs = wanted});
    batch.score_rows.push_back(first_row + position - row.position);
    batch.scored.push_back({row.slot, position + 1, batch.add_tops(batch.score_tops, index, wanted)});
  }
}

void WorkerSequences::commit(const StepBatch& batch, std::span<const kernels::SampleResult> results) {
  TROUPE_CHECK(results.size() == batch.samples.size());
  for (const SamplingOutcome& outcome : batch.outcomes) {
    if (outcome.sample < 0) continue;
    const kernels::SampleResult& result = results[static_cast<std::size_t>(outcome.sample)];
    Slot* slot = find(outcome.slot);
    if (slot == nullptr) continue;
    TROUPE_CHECK(static_cast<std::size_t>(outcome.position) == slot->ids.size());
    slot->ids.push_back(result.error == kernels::SampleError::none ? result.token : 0);
  }
}

}  // namespace troupe::model
