#pragma once
// How a step gets into the GPU and its tokens out of it, without the host waiting for either.
//
// The host writes one piece of pinned memory per step: what is new about the sequences, and the rows to run.
// The first kernel of the step reads it, brings what is new to where it belongs, and fills the arrays that
// all other kernels of the step read, whose addresses never change. So a step that was recorded once as a
// graph serves every batch of its size. The last kernel writes the sampled tokens to pinned memory. Which
// piece of the ring is meant they learn from a counter in device memory: the number of steps collected.
//
// A token that the step before sampled never passes the host: its row names the place where the sampling
// kernel has left it.
#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "gpu/device.h"
#include "kernels/batch.h"
#include "kernels/sample.h"

namespace troupe::kernels {

/// One row of the step: a token at a position of a sequence.
struct InputRow {
  TokenId token = 0;  ///< ~slot: the id that stands at the position among the slot's ids in device memory
  std::int32_t position = 0;
};

constexpr TokenId sampled_by(std::uint32_t slot) { return ~static_cast<TokenId>(slot); }

/// Words of the piece that go to device memory before the step's other kernels run. At most kWordsOfDelta,
/// so that long ones are carried by many thread blocks.
struct Delta {
  std::uint32_t* to = nullptr;
  std::uint32_t from = 0;  ///< bytes from the piece's first; a multiple of 4. With a single word: that word
  std::uint32_t words = 0;
};

inline constexpr std::uint32_t kWordsOfDelta = 512;
inline constexpr int kMostDeltaBlocks = 264;  ///< thread blocks, each of which looks at a delta of its own

/// The beginning of a piece, for the host's own use: kernels find everything by its place.
struct StepPiece {
  std::int32_t deltas = 0;
  std::int32_t padding = 0;
};

/// Where the arrays of a piece begin: bytes from its first, multiples of 8. The same for all pieces of a
/// ring, so that a kernel need not read one part to find the next; behind each array lies room for the
/// largest step.
struct PieceLayout {
  std::uint32_t rows = 0;       ///< InputRow
  std::uint32_t slots = 0;      ///< KvSlot, beside the rows
  std::uint32_t sequences = 0;  ///< Sequence
  std::uint32_t samples = 0;    ///< SampleRow
  std::uint32_t picks = 0;      ///< std::int32_t, beside the samples
  std::uint32_t deltas = 0;  ///< Delta; the first without words ends them. Room for kMostDeltaBlocks at least
  std::uint32_t words = 0;   ///< what the deltas carry
  std::uint32_t bytes = 0;   ///< of a piece
};

/// What the step's kernels read; device memory.
struct StepArrays {
  TokenId* tokens = nullptr;          ///< (rows)
  std::int32_t* positions = nullptr;  ///< (rows)
  KvSlot* slots = nullptr;            ///< (rows)
  SequenceRows* sequences = nullptr;      ///< (sequences)
  SampleRow* samples = nullptr;       ///< (samples)
  std::int32_t* picks = nullptr;      ///< (samples), room for an even number
};

/// Device memory that the two kernels share.
struct StepClock {
  std::uint64_t collected = 0;   ///< steps whose tokens were written
  std::uint64_t started_ns = 0;  ///< of the step that runs, on the GPU's clock
};

/// Reads piece `clock->collected % pieces`: so many rows, sequences and samples, padding among them, which
/// the host has written (token 0 in kPaddingBlock, 0 tokens, logits_row -1), and all deltas. Deltas may not
/// overlap what rows take as sampled.
struct StepInputs {
  const std::byte* ring = nullptr;  ///< pinned
  PieceLayout layout{};
  int pieces = 0;
  StepClock* clock = nullptr;
  StepArrays into{};
  const TokenId* ids = nullptr;  ///< (slots, ids_per_slot) what the sequences' ids are
  std::size_t ids_per_slot = 0;
  int rows = 0;
  int sequences = 0;
  int samples = 0;
  int deltas = 0;  ///< about how many to expect: it only sizes the launch
};

void run(Cuda& device, const StepInputs& op);

/// The beginning of what a step leaves behind, in pinned memory.
struct StepOutcome {
  std::uint64_t step = 0;  ///< number of this step, counted from 1; written last
  std::uint64_t started_ns = 0;
  std::uint64_t finished_ns = 0;  ///< both on the GPU's clock
  std::uint64_t padding = 0;
};

/// Behind the StepOutcome: Sampled for every sample, then SampleResults, of which only those of rows that
/// want logprobs are written.
struct Sampled {
  TokenId token = 0;
  SampleError error = SampleError::none;
};

constexpr std::size_t sampled_at() { return sizeof(StepOutcome); }
constexpr std::size_t results_at(int samples) {
  return sizeof(StepOutcome) + static_cast<std::size_t>(samples) * sizeof(Sampled);
}
/// Bytes of one outcome with room for so many samples.
constexpr std::size_t outcome_bytes(int samples) {
  return (results_at(samples) + static_cast<std::size_t>(samples) * sizeof(SampleResult) + 127) / 128 * 128;
}

/// Ends a step: writes outcome `clock->collected % pieces` and counts the step. The last kernel of each step.
struct CollectOutcome {
  std::byte* ring = nullptr;  ///< pinned; outcomes of outcome_bytes(most_samples)
  int pieces = 0;
  int most_samples = 0;
  StepClock* clock = nullptr;
  const SampleRow* rows = nullptr;        ///< (samples); null when there are none
  const SampleResult* results = nullptr;  ///< (samples)
  int samples = 0;
};

void run(Cuda& device, const CollectOutcome& op);

}  // namespace troupe::kernels
