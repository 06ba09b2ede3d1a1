#include "model/drafts/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "kernels/batch.h"

namespace troupe::model {

MtpDrafter::MtpDrafter(Decoder<Cpu>& decoder, int slots, int steps, std::unique_ptr<NgramDrafter> more)
    : decoder_(decoder), steps_(steps), more_(std::move(more)), slots_(static_cast<std::size_t>(slots)) {}

void MtpDrafter::start(std::uint32_t slot, std::int32_t prompt_tokens, std::span<const TokenId> prediction) {
  slots_[slot].fresh = true;
  slots_[slot].carried = false;
  slots_[slot].drafts.clear();
  if (more_ != nullptr) more_->start(slot, prompt_tokens, prediction);
}

/// The hidden row before the last id that is left is not kept: the slot of that id stays as it was.
void MtpDrafter::rewind(std::uint32_t slot) {
  slots_[slot].carried = false;
  slots_[slot].drafts.clear();
  if (more_ != nullptr) more_->rewind(slot);
}

void MtpDrafter::advance(const StepBatch& batch, std::span<const Advanced> sequences) {
  rows_.clear();
  drafting_.clear();
  for (const Advanced& one : sequences) {
    Slot& slot = slots_[one.slot];
    const kernels::SequenceRows& ran = batch.sequences[static_cast<std::size_t>(one.sequence)];
    // Blocks from the prefix cache lie before it, and the last has the hidden row that its first slot is made
    // with. A sequence that begins within a block has been forked, and has that slot.
    if (slot.fresh && ran.position > 0 && ran.position % kernels::kBlockTokens == 0) slot.carried = true;
    slot.fresh = false;
    const std::int32_t next_at = ran.position + one.rows;
    // Behind the token at `next_at` the layer fills a KV slot for each draft token but the last.
    const auto room = static_cast<std::int32_t>(one.blocks.size()) * kernels::kBlockTokens - next_at;
    const std::int32_t drafts = one.next == kNoToken ? 0 : std::min({one.drafts, steps_, room});
    slot.drafts.clear();
    slot.behind = next_at + 1;
    rows_.push_back({.sequence = one.sequence,
                     .rows = one.rows,
                     .blocks = one.blocks.data(),
                     .next = drafts > 0 ? one.next : kNoToken,
                     .carried = slot.carried && ran.position > 0,
                     .sample = one.sample});
    slot.carried = drafts <= 0;
    if (drafts > 0) drafting_.push_back({one.slot, drafts, one.sample});
  }
  results_.resize(drafting_.size());
  decoder_.draft_rows(batch, rows_, results_);
  while (!drafting_.empty()) again();
}

/// Takes the results, and runs the layer again for those that may draft more.
void MtpDrafter::again() {
  again_.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < drafting_.size(); ++i) {
    Drafting one = drafting_[i];
    if (results_[i].error != kernels::SampleError::none) continue;
    slots_[one.slot].drafts.push_back(results_[i].token);
    if (--one.left == 0) continue;
    ++one.sample.position;
    again_.push_back({.of = static_cast<std::int32_t>(i), .token = results_[i].token, .sample = one.sample});
    drafting_[kept++] = one;
  }
  drafting_.resize(kept);
  results_.resize(kept);
  if (kept > 0) decoder_.draft_again(again_, results_);
}

Drafts MtpDrafter::draft(std::uint32_t index, std::span<const TokenId> ids, std::span<TokenId> out) {
  const Slot& slot = slots_[index];
  std::size_t count = 0;
  if (slot.behind == static_cast<std::int32_t>(ids.size())) {
    count = std::min(out.size(), slot.drafts.size());
    std::copy_n(slot.drafts.begin(), count, out.begin());
  }
  if (more_ == nullptr) return {count};
  return {count + more_->draft_behind(index, ids, out.first(count), out.subspan(count))};
}

}  // namespace troupe::model
