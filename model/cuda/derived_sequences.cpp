// WorkerSequences: rows that the device derives from a last token.
#include <algorithm>

#include "base/check.h"
#include "model/cuda/sequence_table.h"

namespace troupe::model {
namespace {

std::size_t size(std::int32_t count) { return static_cast<std::size_t>(count); }

}  // namespace

std::int32_t WorkerSequences::width_of(std::span<const wire::PlanRow> rows) {
  std::int32_t sequences = 0, most = 1;
  for (const wire::PlanRow& row : rows) {
    const Slot* slot = find(row.slot);
    if (slot == nullptr) continue;
    const bool from_last = (row.flags & wire::kFromLast) != 0;
    const bool decodes =
        (row.flags & wire::kSamples) != 0 && row.tokens == 1 && slot->sampling.prompt_logprobs < 0;
    if (!from_last && !decodes) return 0;
    ++sequences;
    most = std::max(most, row.tokens);
  }
  const auto width = std::ranges::lower_bound(limits_.widths, most);
  return sequences > 0 && width != limits_.widths.end() && sequences * *width <= limits_.most_rows ? *width
                                                                                                   : 0;
}

void WorkerSequences::add_derived_row(const wire::PlanRow& row, Slot& slot, StepBatch& batch) {
  const auto first_row = static_cast<std::int32_t>(batch.tokens.size());
  const auto first_sample = static_cast<std::int32_t>(batch.samples.size());
  const bool gated = (row.flags & wire::kGated) != 0;
  const std::int32_t shift = slot.media != nullptr ? slot.media->positions.shift() : 0;
  batch.derived.push_back({.slot = static_cast<std::int32_t>(row.slot.slot),
                           .sequence = static_cast<std::int32_t>(batch.sequences.size()),
                           .row = first_row,
                           .rows = row.tokens,
                           .sample = first_sample,
                           .drafts = row.tokens - 1,
                           .max_tokens = slot.max_tokens,
                           .room = static_cast<std::int32_t>(slot.blocks.size()) * kernels::kBlockTokens,
                           .prompt_tokens = slot.prompt_tokens,
                           .min_tokens = slot.sampling.min_tokens,
                           .position_shift = shift,
                           .gated = static_cast<std::uint16_t>(gated ? 1 : 0),
                           .proposes = static_cast<std::uint16_t>(slot.proposes > 0 ? 1 : 0)});
  add_drafting(row.slot.slot, slot, batch);
  batch.drafting.back().sample = first_sample;
  batch.drafting.back().derived = static_cast<std::int32_t>(batch.derived.size()) - 1;
  batch.drafting.back().drafts = row.tokens - 1;
  add_proposing(row.slot.slot, slot, batch);
  batch.derived_outcomes.push_back(batch.outcomes.size());
  batch.most_tokens = std::max(batch.most_tokens, row.tokens);
  batch.sequences.push_back({slot.blocks.data(), 0, 0, first_row});
  batch.slots.push_back(row.slot.slot);
  batch.last_blocks.push_back(kernels::kPaddingBlock);
  batch.tokens.resize(size(first_row + row.tokens), kUnsampled);
  for (std::int32_t i = 0; i < row.tokens; ++i) {
    // Every one with the banned ids: the device knows where they end.
    add_sample(row.slot, slot, slot.prompt_tokens, gated && i == 0, batch);
    batch.sample_rows.push_back(first_row + i);
  }
  batch.outcomes[batch.derived_outcomes.back()].drafts = row.tokens - 1;
}

void WorkerSequences::add_drafting(std::uint32_t index, const Slot& slot, StepBatch& batch) {
  batch.drafting.push_back({.slot = static_cast<std::int32_t>(index),
                            .max_tokens = slot.max_tokens,
                            .room = static_cast<std::int32_t>(slot.blocks.size()) * kernels::kBlockTokens,
                            .min_tokens = slot.sampling.min_tokens});
}

// The same, if the results of the sequence say draft tokens.
void WorkerSequences::add_proposing(std::uint32_t index, const Slot& slot, StepBatch& batch) {
  if (slot.proposes == 0) return;
  batch.proposing.push_back({.slot = static_cast<std::int32_t>(index),
                             .sample = batch.drafting.back().sample,
                             .derived = batch.drafting.back().derived,
                             .most = slot.proposes,
                             .max_tokens = slot.max_tokens,
                             .prompt_tokens = slot.prompt_tokens});
}

// Padding behind the rows and samples of the last sequence.
void WorkerSequences::pad_to_width(StepBatch& batch) const {
  const std::size_t rows = batch.sequences.size() * size(batch.width);
  batch.tokens.resize(rows, 0);
  while (batch.samples.size() < rows) {
    batch.sample_rows.push_back(static_cast<std::int32_t>(batch.samples.size()));
    batch.samples.push_back({.logits_row = -1});
  }
}

void WorkerSequences::propose(StepBatch& batch, std::span<const kernels::Proposal> proposals) {
  auto outcome = batch.outcomes.begin();
  for (std::size_t i = 0; i < batch.proposing.size(); ++i) {
    const std::int32_t sample = batch.proposing[i].sample;
    while (outcome != batch.outcomes.end() && outcome->sample < sample) ++outcome;
    if (outcome == batch.outcomes.end()) return;
    if (outcome->sample != sample) continue;  // it has yielded nothing
    const auto ids = std::span(proposals[i].ids).first(size(proposals[i].count));
    outcome->proposed = proposals[i].count;
    batch.proposed.insert(batch.proposed.end(), ids.begin(), ids.end());
  }
}

void WorkerSequences::resolve(StepBatch& batch, std::span<const kernels::Yield> yields,
                              std::span<const kernels::SampleResult> results) const {
  TROUPE_CHECK(yields.size() == batch.derived.size());
  if (yields.empty()) return;
  std::vector<SamplingOutcome>& outcomes = batch.outcomes;
  std::size_t kept = 0, at = 0;
  for (std::size_t i = 0; i < yields.size(); ++i) {
    const kernels::DerivedSequence& derived = batch.derived[i];
    const kernels::Yield& yield = yields[i];
    const std::size_t first = batch.derived_outcomes[i];
    while (at < first) outcomes[kept++] = outcomes[at++];
    at = first + size(derived.rows);
    const std::size_t out = kept;
    for (std::int32_t d = 0; d <= yield.drafts; ++d) outcomes[kept++] = outcomes[first + size(d)];
    SamplingOutcome& outcome = outcomes[out];
    outcome.drafts = yield.drafts;
    outcome.predicted = yield.predicted != 0;
    outcome.idle = yield.tokens == 0;
    if (outcome.idle) outcome.sample = -1;
    const Slot& slot = slots_[outcome.slot.slot];
    const bool held = slot.live && slot.generation == outcome.slot.generation;
    const std::int32_t known = held ? static_cast<std::int32_t>(slot.ids.size()) : 0;
    for (std::int32_t d = 0; d <= yield.drafts; ++d) outcomes[out + size(d)].position = known + d;
    // StepBatch::yield() finds the same number.
    for (std::int32_t t = 1; t < yield.tokens; ++t)
      batch.tokens[size(derived.row + t)] = results[size(derived.sample + t - 1)].token;
  }
  while (at < outcomes.size()) outcomes[kept++] = outcomes[at++];
  outcomes.resize(kept);
}

}  // namespace troupe::model
