#include "model/cuda/sequence_table.h"

#include <algorithm>
#include <array>

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
  if (derives()) batch.width = width_of(record.array(plan.rows));
  for (const wire::PlanRow& row : record.array(plan.rows)) {
    add_row(row, batch);
    if (batch.width > 0) pad_to_width(batch);
  }
  describe_media(batch);
}

void WorkerSequences::start(const wire::RecordView& record, const wire::StartSequence& start) {
  Slot& slot = slots_[start.slot.slot];
  TROUPE_CHECK(!slot.live);
  slot.live = true;
  slot.generation = start.slot.generation;
  slot.prompt_tokens = start.prompt_tokens;
  slot.max_tokens = start.max_tokens;
  slot.proposes = start.proposes;
  slot.proposed.clear();
  if (drafter_ != nullptr) {
    drafter_->start(start.slot.slot, start.prompt_tokens, record.array(start.prediction));
  }
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
  const bool samples = (row.flags & wire::kSamples) != 0, gated = (row.flags & wire::kGated) != 0;
  const bool again = (row.flags & wire::kAgain) != 0;
  if (slot == nullptr) {
    if (samples) batch.outcomes.push_back({row.slot, row.position + row.tokens, -1, gated});
    return;
  }
  // Where a sequence's last token stands is known if it samples again.
  if ((row.flags & wire::kFromLast) != 0 && !(again && derives())) {
    return derives() ? add_derived_row(row, *slot, batch) : add_row_from_last(row, *slot, batch);
  }
  const std::int32_t end = row.position + row.tokens;
  if (again) slot->ids.resize(static_cast<std::size_t>(end));
  const auto first_row = static_cast<std::int32_t>(batch.tokens.size());
  place_row(row, *slot, row.position, row.tokens, batch);
  if (derives()) batch.most_tokens = std::max(batch.most_tokens, row.tokens);
  if (slot->sampling.prompt_logprobs >= 0) add_scores(row, *slot, first_row, batch);
  if (derives()) add_drafting(row.slot.slot, *slot, batch);
  if (samples) {
    slot->wanted_drafts = slot->max_tokens > 0 ? kMostDrafts : 0;
    if (derives()) {
      batch.drafting.back().sample = static_cast<std::int32_t>(batch.samples.size());
      batch.drafting.back().drafts = slot->wanted_drafts;
      add_proposing(row.slot.slot, *slot, batch);
    }
    if (slot->sampling.embeds != 0 && end == slot->prompt_tokens)
      batch.embeds.push_back(static_cast<std::int32_t>(batch.samples.size()));
    add_sample(row.slot, *slot, end, gated, batch);
    batch.sample_rows.push_back(first_row + row.tokens - 1);
  }
}

// Places known tokens of the slot, and kUnsampled beyond, in the batch.
void WorkerSequences::place_row(const wire::PlanRow& row, Slot& slot, std::int32_t position,
                                std::int32_t tokens, StepBatch& batch) {
  const auto first_row = static_cast<std::int32_t>(batch.tokens.size());
  const auto known = static_cast<std::int32_t>(slot.ids.size()), end = position + tokens;
  const auto ids = slot.ids.begin();
  if (position < known) batch.tokens.insert(batch.tokens.end(), ids + position, ids + std::min(end, known));
  batch.tokens.resize(static_cast<std::size_t>(first_row + tokens), kUnsampled);
  batch.sequences.push_back({slot.blocks.data(), position, tokens, first_row});
  batch.slots.push_back(row.slot.slot);
  const std::int32_t last_block_at = (end - 1) / kernels::kBlockTokens;
  if (slot.last_block_at != last_block_at) {
    slot.last_block_at = last_block_at;
    slot.last_block = slot.blocks[static_cast<std::size_t>(last_block_at)];
  }
  batch.last_blocks.push_back(slot.last_block);
}

void WorkerSequences::add_row_from_last(const wire::PlanRow& row, Slot& slot, StepBatch& batch) {
  const bool gated = (row.flags & wire::kGated) != 0;
  if ((row.flags & wire::kAgain) != 0) {
    slot.ids.resize(std::min(slot.ids.size(), static_cast<std::size_t>(row.position) + 1));
    slot.proposed.clear();
    if (drafter_ != nullptr) drafter_->rewind(row.slot.slot);
  }
  const auto known = static_cast<std::int32_t>(slot.ids.size());
  const auto room = static_cast<std::int32_t>(slot.blocks.size()) * kernels::kBlockTokens;
  if (known >= slot.max_tokens || known > room) {
    batch.outcomes.push_back({.slot = row.slot, .position = known, .gated = gated, .idle = true});
    return;
  }
  slot.wanted_drafts = row.tokens - 1;
  const Drafts made =
      add_drafts(row.slot.slot, std::min({row.tokens - 1, slot.max_tokens - known - 1, room - known}));
  const auto drafts = static_cast<std::int32_t>(made.count);
  const auto first_row = static_cast<std::int32_t>(batch.tokens.size());
  const std::size_t first_outcome = batch.outcomes.size();
  place_row(row, slot, known - 1, 1 + drafts, batch);
  for (std::int32_t i = 0; i <= drafts; ++i) {
    add_sample(row.slot, slot, known + i, gated && i == 0, batch);
    batch.sample_rows.push_back(first_row + i);
  }
  batch.outcomes[first_outcome].drafts = drafts;
  batch.outcomes[first_outcome].predicted = made.predicted && drafts > 0;
}

// Appends up to `most` draft tokens to the slot's ids.
Drafts WorkerSequences::add_drafts(std::uint32_t index, std::int32_t most) {
  Slot& slot = slots_[index];
  if (drafter_ == nullptr || most <= 0) return {};
  const auto wanted = static_cast<std::size_t>(std::min(most, kMostDrafts));
  std::array<TokenId, kMostDrafts> memory{};
  Drafts made{slot.proposed.size(), slot.proposed_predicted};
  std::span<const TokenId> drafts = slot.proposed;
  if (slot.proposes == 0) {
    made = draft(index, std::span(memory).first(wanted));
    drafts = std::span(memory).first(made.count);
  }
  made.count = std::min(made.count, wanted);
  drafts = drafts.first(made.count);
  slot.ids.insert(slot.ids.end(), drafts.begin(), drafts.end());
  return made;
}

// Draft tokens behind the slot's ids, at the front of `out`. They end before an id that stands for an image
// or a video, or bounds one: the rows that verify them are text.
Drafts WorkerSequences::draft(std::uint32_t index, std::span<TokenId> out) {
  Drafts made = drafter_->draft(index, slots_[index].ids, out);
  const auto is_of_media = [this](TokenId id) {
    return vision_ && (id == vision_->patch || id == vision_->video_patch || vision_->is_boundary(id));
  };
  const std::span<const TokenId> drafts = out.first(made.count);
  made.count = static_cast<std::size_t>(std::ranges::find_if(drafts, is_of_media) - drafts.begin());
  return made;
}

// Likewise, where the form forces what follows.
Drafts WorkerSequences::draft(std::uint32_t index, std::span<const TokenId> forced, std::span<TokenId> out) {
  const Drafts own = draft(index, out);
  forced = forced.first(std::min(forced.size(), out.size()));
  if (std::ranges::equal(forced, out.first(std::min(own.count, forced.size())))) return own;
  std::ranges::copy(forced, out.begin());
  return {forced.size()};
}

void WorkerSequences::propose(StepBatch& batch, std::span<const kernels::SampleResult> results) {
  if (drafter_ == nullptr) return;
  for (std::size_t i = 0; i < batch.outcomes.size();
       i += 1 + static_cast<std::size_t>(batch.outcomes[i].drafts)) {
    SamplingOutcome& outcome = batch.outcomes[i];
    Slot* slot = outcome.sample < 0 ? nullptr : find(outcome.slot);
    if (slot == nullptr || slot->proposes == 0) continue;
    slot->proposed.clear();
    const std::int32_t most = std::min(
        {slot->proposes, kMostDrafts, slot->max_tokens - static_cast<std::int32_t>(slot->ids.size()) - 1});
    if (most <= 0 || results[static_cast<std::size_t>(outcome.sample)].error != kernels::SampleError::none)
      continue;
    const bool reached = batch.yield(i, results) == outcome.masks && !outcome.forced.empty() &&
                         outcome.forced.front() == slot->ids.back();
    slot->proposed.resize(static_cast<std::size_t>(most));
    const Drafts made = draft(
        outcome.slot.slot, reached ? outcome.forced.subspan(1) : std::span<const TokenId>{}, slot->proposed);
    slot->proposed.resize(made.count);
    slot->proposed_predicted = made.predicted;
    outcome.proposed = static_cast<std::int32_t>(slot->proposed.size());
    batch.proposed.insert(batch.proposed.end(), slot->proposed.begin(), slot->proposed.end());
  }
}

// As long as all rows of a step are those of text sequences, it has no positions and no kinds.
void WorkerSequences::describe_media(StepBatch& batch) const {
  const auto has_media = [this](std::uint32_t slot) { return slots_[slot].media != nullptr; };
  if (!vision_ || std::ranges::none_of(batch.slots, has_media)) return;
  batch.positions.assign(batch.tokens.size(), {0, 0, 0});
  batch.kinds.assign(batch.tokens.size(), kTextRow);
  bool sees = false;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const kernels::SequenceRows& rows = batch.sequences[i];
    const Slot& slot = slots_[batch.slots[i]];
    if (slot.media != nullptr) {
      add_media(slot, {batch.slots[i], slot.generation}, rows, batch);
      continue;
    }
    for (std::int32_t t = 0; t < rows.tokens; ++t) {
      const std::int32_t at = rows.position + t;
      batch.positions[static_cast<std::size_t>(rows.row + t)] = {at, at, at};
    }
  }
  for (const std::uint8_t kind : batch.kinds) sees = sees || kind == kVisionRow;
  if (!sees) batch.kinds.clear();
}

void WorkerSequences::add_media(const Slot& slot, SlotRef ref, const kernels::SequenceRows& rows,
                                StepBatch& batch) const {
  const std::int32_t end = rows.position + rows.tokens;
  for (std::int32_t at = rows.position; at < end; ++at) {
    const auto row = static_cast<std::size_t>(rows.row + at - rows.position);
    batch.positions[row] = slot.media->positions.at(at);
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

// Samples the token behind the first `known` ids.
void WorkerSequences::add_sample(SlotRef ref, const Slot& slot, std::int32_t known, bool gated,
                                 StepBatch& batch) {
  const auto index = static_cast<std::int32_t>(batch.samples.size());
  batch.outcomes.push_back(
      {ref, known, index, gated, batch.add_tops(batch.sample_tops, index, slot.sampling.logprobs)});
  batch.samples.push_back(sample_row(slot, known));
  batch.samples.back().logits_row = index;
  batch.logprobs |= slot.sampling.logprobs >= 0;
}

kernels::SampleRow WorkerSequences::sample_row(const Slot& slot, std::int32_t known) {
  const wire::Sampling& sampling = slot.sampling;
  const std::int32_t outputs = known - slot.prompt_tokens;
  const bool banned = outputs < sampling.min_tokens;
  return {
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
  };
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
  for (std::size_t i = 0; i < batch.outcomes.size();
       i += 1 + static_cast<std::size_t>(batch.outcomes[i].drafts)) {
    const SamplingOutcome& outcome = batch.outcomes[i];
    if (outcome.sample < 0) continue;
    Slot* slot = find(outcome.slot);
    if (slot == nullptr) continue;
    const auto first = static_cast<std::size_t>(outcome.sample);
    if (outcome.drafts > 0) slot->ids.resize(static_cast<std::size_t>(outcome.position));
    TROUPE_CHECK(static_cast<std::size_t>(outcome.position) == slot->ids.size());
    for (const kernels::SampleResult& result :
         results.subspan(first, static_cast<std::size_t>(batch.yield(i, results)))) {
      slot->ids.push_back(result.error == kernels::SampleError::none ? result.token : 0);
    }
  }
  if (drafter_ != nullptr) advance(batch, results);
}

// Tells the drafter of every sequence of the batch. Those that sample have their outcomes in the same order.
void WorkerSequences::advance(const StepBatch& batch, std::span<const kernels::SampleResult> results) {
  advanced_.clear();
  std::size_t at = 0;
  const auto samples_none = [&] { return at < batch.outcomes.size() && batch.outcomes[at].sample < 0; };
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const kernels::SequenceRows& rows = batch.sequences[i];
    const Slot& slot = slots_[batch.slots[i]];
    Advanced one{.sequence = static_cast<std::int32_t>(i),
                 .slot = batch.slots[i],
                 .rows = rows.tokens,
                 .blocks = slot.blocks};
    while (samples_none()) ++at;
    if (at < batch.outcomes.size()) {
      const SamplingOutcome& outcome = batch.outcomes[at];
      const std::int32_t row = batch.sample_rows[static_cast<std::size_t>(outcome.sample)];
      if (row < rows.row + rows.tokens) {
        const auto known = static_cast<std::int32_t>(slot.ids.size());
        if (outcome.drafts > 0) one.rows = batch.yield(at, results);
        one.next = slot.ids.back();
        one.drafts = std::min(slot.wanted_drafts, slot.max_tokens - known - 1);
        one.sample = sample_row(slot, known);
        one.sample.logprobs = -1;
        at += 1 + static_cast<std::size_t>(outcome.drafts);
      }
    }
    advanced_.push_back(one);
  }
  drafter_->advance(batch, advanced_);
}

}  // namespace troupe::model
