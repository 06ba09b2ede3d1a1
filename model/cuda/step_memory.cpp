#include "model/cuda/step_memory.h"

#include "model/plan_check.h"
#include "model/step_gates.h"

namespace troupe::model {

StepMemory StepMemory::make(const wire::Capacity& capacity, View memory) {
  Arena arena(memory);
  const auto slots = static_cast<std::size_t>(capacity.max_slots);
  const auto rows = static_cast<std::size_t>(capacity.max_tokens_per_step);
  const auto samples = static_cast<std::size_t>(most_samples(capacity));
  StepMemory made;
  made.sequences.blocks_per_slot =
      static_cast<std::size_t>(capacity.max_model_len) / kernels::kBlockTokens + 1;
  made.sequences.sampled = arena.take<TokenId>(slots);
  made.sequences.blocks = arena.take<BlockId>(slots * made.sequences.blocks_per_slot);
  made.sequences.lists = arena.take<std::byte>(slots * kMaxSamplingBytes);
  made.sequences.scores = arena.take<kernels::ScoreRow>(rows);
  made.sequences.score_picks = arena.take<std::int32_t>(rows);
  made.sequences.read_rows = arena.take<std::int32_t>(slots);
  made.sequences.read_sequences = arena.take<kernels::SequenceRows>(slots);
  if (most_tops(capacity) > 0) {
    made.sequences.sample_tops = arena.take<kernels::TopRow>(samples);
    made.sequences.score_tops = arena.take<kernels::TopRow>(rows);
  }
  made.arrays.tokens = arena.take<TokenId>(rows);
  made.arrays.positions = arena.take<std::int32_t>(rows);
  made.arrays.slots = arena.take<kernels::KvSlot>(rows);
  made.arrays.sequences = arena.take<kernels::SequenceRows>(slots);
  made.arrays.samples = arena.take<kernels::SampleRow>(samples);
  made.arrays.picks = arena.take<std::int32_t>(samples + 1);
  made.clock = arena.take<kernels::StepClock>(1);
  made.held_rows = arena.take<kernels::SampleRow>(samples);
  made.gates = arena.take<std::int32_t>(samples);
  made.sequences.masks =
      arena.take<std::uint32_t>(StepGates::most_masks(capacity) * kernels::mask_words(capacity.vocab_size));
  if (memory.data != nullptr) made.sequences.held = &made.clock->held;
  if (capacity.media_tokens > 0) {
    made.sequences.positions = arena.take<std::int32_t>(3 * rows);
    made.sequences.kinds = arena.take<std::uint8_t>((rows + 3) / 4 * 4);
  }
  if (capacity.max_drafts > 0) {
    made.arrays.derived = arena.take<kernels::DerivedSequence>(slots);
    made.sequences.states = arena.take<kernels::SlotState>(slots);
    made.sequences.predictions = arena.take<TokenId>(slots * wire::kMostPredicted);
    made.sequences.predicted = arena.take<std::int32_t>(slots);
    made.sequences.yields = arena.take<kernels::Yield>(slots);
    made.arrays.drafting = arena.take<kernels::DraftingSequence>(slots);
    made.sequences.drafted = arena.take<TokenId>(slots * kMostDrafts);
    made.sequences.proposals = arena.take<kernels::Proposal>(slots);
    made.proposing = arena.take<kernels::ProposingSequence>(slots);
    kernels::DraftArrays& drafts = made.drafts;
    drafts.tokens = arena.take<TokenId>(rows);
    drafts.slots = arena.take<kernels::KvSlot>(rows);
    drafts.sequences = arena.take<kernels::SequenceRows>(slots);
    drafts.ends = arena.take<kernels::SequenceRows>(slots);
    drafts.samples = arena.take<kernels::SampleRow>(slots);
    for (auto* by_row : {&drafts.positions, &drafts.from, &drafts.fill_to, &drafts.fill_from})
      *by_row = arena.take<std::int32_t>(rows);
    for (auto* by_sequence :
         {&drafts.picks, &drafts.carry_to, &drafts.carry_from, &drafts.keep_to, &drafts.keep_from})
      *by_sequence = arena.take<std::int32_t>(slots);
  }
  made.bytes = arena.used();
  return made;
}

}  // namespace troupe::model
