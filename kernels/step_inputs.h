#pragma once
// Transfers a step's inputs to the GPU and its tokens back, without the host waiting for either.
//
// The host writes one piece of a ring in pinned memory per step: changes to the sequences (deltas) and the
// rows to compute. The step's first kernel reads the piece, applies the deltas, and fills the arrays that all
// other kernels of the step read. The arrays' addresses never change, so one captured graph serves every
// batch of its size. The last kernel writes the sampled tokens to pinned memory. Both kernels find the
// current piece by a counter in device memory: the number of finished steps.
//
// A token sampled by the previous step does not pass through the host: its row names the slot in device
// memory where the sampling kernel stored it.
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/batch.h"
#include "kernels/sample.h"

namespace troupe::kernels {

// derived_rows.h
struct SlotState;
struct ProposingSequence;
struct Proposal;

/// One row of the step: a token at a position of its sequence.
struct InputRow {
  TokenId token = 0;  ///< or ~slot: the id that was last sampled for the slot
  std::int32_t position = 0;
};

constexpr TokenId sampled_by(std::uint32_t slot) { return ~static_cast<TokenId>(slot); }

/// A sequence of the step whose rows the GPU derives (derived_rows.h).
struct DerivedSequence {
  std::int32_t slot = -1;     ///< -1: padding
  std::int32_t sequence = 0;  ///< index in StepArrays::sequences
  std::int32_t row = 0;       ///< the first of its rows
  std::int32_t rows = 0;      ///< room for so many rows and samples; 0: the host has made them
  std::int32_t sample = 0;    ///< the first of its samples
  std::int32_t drafts = 0;    ///< most draft tokens, below `rows`
  std::int32_t max_tokens = 0;
  std::int32_t room = 0;  ///< tokens for which it has blocks
  std::int32_t prompt_tokens = 0;
  std::int32_t min_tokens = 0;      ///< of the answer
  std::int32_t position_shift = 0;  ///< a row stands at its place in the sequence + this, behind items
  std::uint16_t gated = 0;          ///< 1: its samples wait for masks (OpenGates)
  std::uint16_t proposes = 0;       ///< 1: its draft tokens are its slot's Proposal
};

/// A sequence of the step behind which the draft layer runs (derived_drafts.h).
struct DraftingSequence {
  std::int32_t slot = -1;     ///< -1: padding
  std::int32_t sample = -1;   ///< the first of its samples; -1: none, since its known tokens go on
  std::int32_t derived = -1;  ///< index of its Yield; -1: the host has made its rows
  std::int32_t drafts = 0;    ///< most draft tokens that are wanted of it
  std::int32_t max_tokens = 0;
  std::int32_t room = 0;        ///< tokens for which it has blocks
  std::int32_t min_tokens = 0;  ///< of the answer
  std::int32_t known = 0;       ///< made by the GPU: tokens behind the step, the last sampled one among them
};

/// What a derived sequence has come to in a step.
struct Yield {
  std::int32_t tokens = 0;  ///< sampled, those accepted and one more; 0: the sequence had all its tokens
  std::int16_t drafts = 0;  ///< draft tokens that were verified
  std::int16_t predicted = 0;
};

/// Words to copy from the piece to device memory before the step's other kernels run. At most kWordsOfDelta
/// words, so that a long change is split among many thread blocks.
struct Delta {
  std::uint32_t* to = nullptr;
  std::uint32_t from =
      0;  ///< byte offset in the piece, a multiple of 4; of a single-word delta: the word itself
  std::uint32_t words = 0;
};

inline constexpr std::uint32_t kWordsOfDelta = 512;
inline constexpr int kMostDeltaBlocks = 264;  ///< thread blocks, each of which reads its own delta first

/// The header of a piece, used by the host only: kernels know all offsets.
struct StepPiece {
  std::int32_t deltas = 0;
  std::int32_t padding = 0;
};

/// Byte offsets of a piece's arrays, multiples of 8. The same for all pieces of a ring, with room for the
/// largest step, so that a kernel need not read one part to find the next.
struct PieceLayout {
  std::uint32_t rows = 0;       ///< InputRow
  std::uint32_t slots = 0;      ///< KvSlot, beside the rows
  std::uint32_t sequences = 0;  ///< Sequence
  std::uint32_t samples = 0;    ///< SampleRow
  std::uint32_t picks = 0;      ///< std::int32_t, beside the samples
  std::uint32_t derived = 0;    ///< DerivedSequence; with speculation
  std::uint32_t drafting = 0;   ///< DraftingSequence, beside the sequences; with speculation
  std::uint32_t deltas = 0;     ///< Delta, up to the first without words; room for at least kMostDeltaBlocks
  std::uint32_t words = 0;      ///< the words that the deltas copy
  std::uint32_t bytes = 0;      ///< of a piece
};

/// The arrays that the step's other kernels read; device memory.
struct StepArrays {
  TokenId* tokens = nullptr;             ///< (rows)
  std::int32_t* positions = nullptr;     ///< (rows)
  KvSlot* slots = nullptr;               ///< (rows)
  SequenceRows* sequences = nullptr;     ///< (sequences)
  SampleRow* samples = nullptr;          ///< (samples)
  std::int32_t* picks = nullptr;         ///< (samples), room for an even number
  DerivedSequence* derived = nullptr;    ///< (sequences); null without speculation
  DraftingSequence* drafting = nullptr;  ///< (sequences); the same
};

/// Device memory that the two kernels share.
struct StepClock {
  std::uint64_t collected = 0;   ///< steps whose tokens were written
  std::uint64_t started_ns = 0;  ///< start of the current step, on the GPU's clock
  /// Not 0: some rows of the current step have not sampled; it does not end yet. Set by a delta.
  std::uint32_t held = 0;
  std::uint32_t padding = 0;
};

/// Reads piece `clock->collected % pieces`: so many rows, sequences and samples, padding among them, which
/// the host has written (token 0 in kPaddingBlock, 0 tokens, logits_row -1), and all deltas. Deltas may not
/// overlap what rows take as sampled. The ids of the rows also go to where their blocks have them
/// (KvCache::ids).
struct StepInputs {
  const std::byte* ring = nullptr;  ///< pinned
  PieceLayout layout{};
  int pieces = 0;
  StepClock* clock = nullptr;
  StepArrays into{};
  const TokenId* sampled = nullptr;    ///< (slots) the id last sampled
  TokenId* block_ids = nullptr;        ///< those of block 0; null: blocks have none
  std::int64_t ids_to_next_block = 0;  ///< from a block's ids to the next one's, counted in ids
  int rows = 0;
  int sequences = 0;
  int samples = 0;
  int derived = 0;
  int drafting = 0;
  int deltas = 0;  ///< the approximate number of deltas; only determines the size of the launch
};

void run(Cuda& device, const StepInputs& op);

/// The header of a step's outcome in pinned memory.
struct StepOutcome {
  std::uint64_t step = 0;  ///< number of this step, counted from 1; written last
  std::uint64_t started_ns = 0;
  std::uint64_t finished_ns = 0;  ///< both on the GPU's clock
  std::uint64_t padding = 0;
};

/// After the StepOutcome: a Sampled for every sample, then a SampleResult for every sample, then a Yield for
/// every derived sequence, then a Proposal for every proposing one. SampleResults are written only for rows
/// that want logprobs.
struct Sampled {
  TokenId token = 0;
  SampleError error = SampleError::none;
};

constexpr std::size_t sampled_at() { return sizeof(StepOutcome); }
constexpr std::size_t results_at(int samples) {
  return sizeof(StepOutcome) + static_cast<std::size_t>(samples) * sizeof(Sampled);
}
constexpr std::size_t yields_at(int samples) {
  return results_at(samples) + static_cast<std::size_t>(samples) * sizeof(SampleResult);
}
constexpr std::size_t proposals_at(int samples) {
  return yields_at(samples) + static_cast<std::size_t>(samples) * sizeof(Yield);
}
inline constexpr std::size_t kProposalBytes = 40;
/// Bytes of an outcome with room for this many samples, and as many derived and proposing sequences.
constexpr std::size_t outcome_bytes(int samples) {
  return (proposals_at(samples) + static_cast<std::size_t>(samples) * kProposalBytes + 127) / 128 * 128;
}

/// Values of OpenGates::gates beside the places of masks.
inline constexpr std::int32_t kGateWithoutMask = -1, kClosedGate = -2;

/// The masks of a held step are there. Rows whose gate is not closed become rows that sample: in `rows`, for
/// what runs behind the draw, and in `held_rows`, where all others are padding, for the draw itself. One that
/// does not run (known_tokens 0) stays padding. The step is not held any more.
struct OpenGates {
  StepClock* clock = nullptr;
  SampleRow* rows = nullptr;            ///< (samples)
  SampleRow* held_rows = nullptr;       ///< (samples)
  const std::int32_t* gates = nullptr;  ///< (samples) index of the row's mask in `masks`, or one of the above
  const std::uint32_t* masks = nullptr;  ///< of mask_words words each
  std::size_t mask_words = 0;
  int samples = 0;
};

void run(Cuda& device, const OpenGates& op);

/// Ends a step: writes outcome `clock->collected % pieces` and counts the step. The last kernel of each step.
/// While the step is held it does nothing.
struct CollectOutcome {
  std::byte* ring = nullptr;  ///< pinned; outcomes of outcome_bytes(most_samples)
  int pieces = 0;
  int most_samples = 0;
  StepClock* clock = nullptr;
  const SampleRow* rows = nullptr;        ///< (samples); null when there are none
  const SampleResult* results = nullptr;  ///< (samples)
  int samples = 0;
  // With speculation:
  SlotState* states = nullptr;       ///< (slots) of which the samples with a `next` set `known`
  const TokenId* sampled = nullptr;  ///< (slots) where their `next` points to
  const Yield* yields = nullptr;     ///< (derived)
  int derived = 0;
  const ProposingSequence* proposing = nullptr;  ///< (proposing_count)
  const Proposal* proposals = nullptr;           ///< (slots)
  int proposing_count = 0;
};

void run(Cuda& device, const CollectOutcome& op);

}  // namespace troupe::kernels
